// What is not zero in each row of a matrix: columns, two to a word, and values. A workgroup packs a row: each invocation a share of it,
// whose places follow from how many the shares before have.
// Expects: w, columns ([N, WIDTH / 2] words), values ([N, WIDTH]), K, WIDTH (at least what any row has), W_N W_K (strides in w).
// Places past a row's last value have column 0xffff.
var<workgroup> counts: array<u32, WORKGROUP_SIZE>;

// By its bits: a comparison may take a NaN or a denormal number for zero.
fn is_there(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7fffffffu) != 0u;
}

fn group_main(row: u32, lane: u32) {
    let share = (K + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    let begin = min(lane * share, K);
    let end = min(begin + share, K);
    var count = 0u;
    for (var k = begin; k < end; k++) { count += select(0u, 1u, is_there(w_at(row * W_N + k * W_K))); }
    counts[lane] = count;
    for (var reach = 1u; reach < WORKGROUP_SIZE; reach *= 2u) {
        workgroupBarrier();
        var before = 0u;
        if (lane >= reach) { before = counts[lane - reach]; }
        workgroupBarrier();
        counts[lane] += before;
    }
    workgroupBarrier();
    let total = counts[WORKGROUP_SIZE - 1u];
    var at = counts[lane] - count;
    var first = 0xffffu;     // the column in the low half of a word that waits for its high half, which may be another share's
    for (var k = begin; k < K && (k < end || first != 0xffffu); k++) {
        let value = w_at(row * W_N + k * W_K);
        if (is_there(value) && at < WIDTH) {
            if (k < end) { values_set(row * WIDTH + at, value); }
            if (at % 2u == 1u) {
                if (first != 0xffffu) { columns_set((row * WIDTH + at) / 2u, first | (k << 16u)); }
                first = 0xffffu;
            } else if (k < end) {
                first = k;
            }
            at++;
        }
    }
    if (first != 0xffffu) { columns_set((row * WIDTH + at) / 2u, 0xffff0000u | first); }
    for (var i = total + lane; i < WIDTH; i += WORKGROUP_SIZE) {
        values_set(row * WIDTH + i, 0.0);
        if (i % 2u == 0u) { columns_set((row * WIDTH + i) / 2u, 0xffffffffu); }
    }
}
