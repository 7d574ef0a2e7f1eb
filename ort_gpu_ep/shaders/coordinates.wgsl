// y[a, j] = coordinate a of the element chosen[j], for j < count, as an int64 (low word, high word), rows of `count` elements one behind the
// other; what is behind them is nobody's. One invocation per element of y.
// Expects: chosen, count, RANK, N, and of each axis a SIZEa and STEPa. Bound raw.
fn element(i: u32) -> y_t {
    let n = min(count_at(0u), N);
    if (i >= RANK * n) { return y_t(); }
    let at = chosen_at(min(i % n, N - 1u));
    let axis = i / n;
    var c = 0u;
#for a in RANK
    if (axis == $(a)u) { c = at / max(STEP$a, 1u) % max(SIZE$a, 1u); }
#end
    return y_t(c, 0u);
}
