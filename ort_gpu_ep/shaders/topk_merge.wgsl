// merged[line, r] = the first KEEP indices of the sorted runs 2r and 2r + 1; an invocation per element of merged.
// Expects: keys ([line, N], low and high words), order ([line, RUNS, LENGTH]), KEEP.
// Source: merge path (Green et al. 2012): binary search for how many of the first j elements come from the first run.
// An index of NOTHING stands for no element, and goes last.
const NOTHING: u32 = 0xffffffffu;

fn before(line: u32, a: u32, b: u32) -> bool {
    if (a == NOTHING || b == NOTHING) { return a < b; }
    let p = keys_at(line * N + a);
    let q = keys_at(line * N + b);
    if (p.y != q.y) { return p.y < q.y; }
    if (p.x != q.x) { return p.x < q.x; }
    return a < b;
}

fn element(i: u32) -> merged_t {
    let pairs = (RUNS + 1u) / 2u;
    let line = i / (pairs * KEEP);
    let run = (i / KEEP) % pairs * 2u;
    let j = i % KEEP;
    let first = (line * RUNS + run) * LENGTH;
    let second = first + LENGTH;
    let length = select(0u, LENGTH, run + 1u < RUNS);     // the last run may have no partner
    var low = select(0u, j - length, j > length);
    var high = min(j, LENGTH);
    while (low < high) {
        let middle = (low + high) / 2u;
        if (before(line, order_at(second + j - 1u - middle), order_at(first + middle))) { high = middle; } else { low = middle + 1u; }
    }
    var found = NOTHING;
    if (low < LENGTH) { found = order_at(first + low); }
    if (j - low < length) {
        let other = order_at(second + j - low);
        if (low >= LENGTH || before(line, other, found)) { found = other; }
    }
    return found;
}
