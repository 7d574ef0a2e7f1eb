// c[t] = forget[t] * c[t - 1] + added[t], from c0. One invocation for each of N elements of a state.
// Expects: forget, added [T, N], c0 [N], N, T. Source: the body of LSTMCells in training/functions.py.
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= N) { return; }
    var c = c0_at(i);
    for (var t = 0u; t < T; t++) {
        c = forget_at(t * N + i) * c + added_at(t * N + i);
        c_set(t * N + i, c);
    }
}
