// y[t, n] = the sum over the SLOTS experts of a token of share times x[t, slot, n]. One invocation per element.
// Expects: x ([tokens, SLOTS, N]), shares ([tokens, SLOTS]), y ([tokens, N]).
fn element(i: u32) -> y_t {
    let r = i / N * SLOTS;
    var sum = 0.0;
    for (var s = 0u; s < SLOTS; s++) { sum = fma(shares_at(r + s), x_at((r + s) * N + i % N), sum); }
    return sum;
}
