// y[p, c] = x[p, c] combined with updates[n, c] for every n whose place is p, in order; an invocation per element of y.
// Expects: x, updates, places (row of each update), ROW (elements of a row), UPDATES, candidates (Strided over y: the first
// update that may go to an element), COUNT and STEP (how many there are, and how far apart), KIND (0 add, 1 mul, 2 max, 3 min).
fn combine(a: y_t, b: y_t) -> y_t {
    if (KIND == 0u) { return a + b; }
    if (KIND == 1u) { return a * b; }
    if (KIND == 2u) { return max(a, b); }
    return min(a, b);
}

fn element(i: u32) -> y_t {
    var value = x_at(i);
    var n = candidates(i);
    for (var k = 0u; k < COUNT && n < UPDATES; k++) {
        if (places_at(n) == i / ROW) { value = combine(value, updates_at(n * ROW + i % ROW)); }
        n += STEP;
    }
    return value;
}
