// Of the different slices, as int64 (low word, high word): KIND 1: y[p] = the first of them that is p-th; 2: y[k] = which of them slice k is;
// 3: y[p] = how many slices are the p-th. What is behind the last is nobody's. One invocation per element.
// Expects: order, first, rank, N, KIND. Bound raw.
fn element(i: u32) -> y_t {
    let slice = min(order_at(i), N - 1u);
    if (KIND == 1u) { return y_t(slice, 0u); }
    if (KIND == 2u) { return y_t(rank_at(min(first_at(i), N - 1u)), 0u); }
    var sum = 0u;
    for (var k = 0u; k < N; k++) {
        if (first_at(k) == slice) { sum += 1u; }
    }
    return y_t(sum, 0u);
}
