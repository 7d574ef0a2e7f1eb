// y[line, j] = sum, or product (PRODUCT), of x[line, k], k <= j (EXCLUSIVE: k < j; REVERSE: from the end); a workgroup per line, WORKGROUP_SIZE
// elements at a time: a scan in workgroup memory on top of the sum so far.
// Expects: x, y, N (length of a line), INNER (stride along it), EXCLUSIVE, REVERSE, PRODUCT.
// Source: Hillis and Steele, Data Parallel Algorithms (1986). An exclusive sum is no difference, so that infinities stay right.
var<workgroup> sums: array<y_t, WORKGROUP_SIZE>;

#if PAIRS and X_BITS == 64
fn joined(a: y_t, b: y_t) -> y_t {
    if (PRODUCT) { return mul_64(a, b); }
    return add_64(a, b);
}

fn one() -> y_t { return vec2(1u, 0u); }
#else
fn joined(a: y_t, b: y_t) -> y_t {
    if (PRODUCT) { return a * b; }
    return a + b;
}

fn one() -> y_t { return y_t(1); }
#end

fn of_none() -> y_t {
    if (PRODUCT) { return one(); }
    return y_t();
}

fn group_main(group: u32, lane: u32) {
    let line = (group / INNER) * N * INNER + group % INNER;
    var before = of_none();
    for (var start = 0u; start < N; start += WORKGROUP_SIZE) {
        let k = start + lane;
        let at = line + select(k, N - 1u - k, REVERSE) * INNER;
        var sum = of_none();
        if (k < N) { sum = x_at(at); }
        for (var step = 1u; step < WORKGROUP_SIZE; step *= 2u) {
            sums[lane] = sum;
            workgroupBarrier();
            if (lane >= step) { sum = joined(sums[lane - step], sum); }
            workgroupBarrier();
        }
        sums[lane] = sum;
        workgroupBarrier();
        if (EXCLUSIVE) {
            sum = of_none();
            if (lane > 0u) { sum = sums[lane - 1u]; }
        }
        if (k < N) { y_set(at, joined(before, sum)); }
        before = joined(before, sums[WORKGROUP_SIZE - 1u]);
        workgroupBarrier();
    }
}
