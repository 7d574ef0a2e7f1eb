// y[o, j, i] = x[o, chosen[j], i] for j < count, as if y had count slices; what is behind them is nobody's. One invocation per element.
// Expects: x, chosen, count, OUTER, N (slices of x), INNER (elements of x between two along the axis). Bound raw.
fn element(i: u32) -> y_t {
    let n = min(count_at(0u), N);
    if (i >= OUTER * n * INNER) { return y_t(); }
    let slice = min(chosen_at(min(i / INNER % n, N - 1u)), N - 1u);
    return x_at((i / (INNER * n) * N + slice) * INNER + i % INNER);
}
