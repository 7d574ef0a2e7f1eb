// order[p] = the slice that is p-th of the different ones, rank[s] = p of each first slice s. One invocation for each of them.
// Expects: x, chosen (first slices, as they come), count, OUTER, N (slices), INNER, FLOAT, SORTED (else as they come).
#include unequal.wgsl
fn group_main(group: u32, lane: u32) {
    let j = group * WORKGROUP_SIZE + lane;
    let n = min(count_at(0u), N);
    if (j >= n) { return; }
    let slice = min(chosen_at(j), N - 1u);
    var p = j;
    if (SORTED) {
        p = 0u;
        for (var k = 0u; k < n; k++) {
            if (compared(min(chosen_at(k), N - 1u), slice) < 0) { p += 1u; }
        }
    }
    order_set(min(p, N - 1u), slice);
    rank_set(slice, min(p, N - 1u));
}
