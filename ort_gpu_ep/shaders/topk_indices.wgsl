// y[i] = order[place(i)] as an int64 (low word, high word); an invocation per element of y.
// Expects: order (u32), place (Strided over y). Bound raw.
fn element(i: u32) -> y_t { return vec2<u32>(order_at(place(i)), 0u); }
