// y[o, k, i] = values[indices[o, i] is k or k - DEPTH], an invocation per element of y.
// Expects: indices (f32, or 32 or 64 bit integers), values (off, on), DEPTH, INNER (elements of y for each k), FLOATING, WIDE.
// Bound raw. Out of range: off everywhere.
fn element(i: u32) -> y_t {
    let k = i32((i / INNER) % DEPTH);
    let words = vec2<u32>(indices_at(i / (INNER * DEPTH) * INNER + i % INNER));
    var index = bitcast<i32>(words.x);
    if (FLOATING) { index = i32(bitcast<f32>(words.x)); }
    let fits = !WIDE || bitcast<i32>(words.y) == index >> 31u;
    return values_at(select(0u, 1u, fits && (index == k || index == k - i32(DEPTH))));
}
