// y[i] = x[x_index(i)]: transpose, slice, broadcast and every other affine reading of one tensor.
// Expects: x, x_index (Strided over y's shape). Bound raw: moves bits of any element type.
fn element(i: u32) -> y_t { return x_at(x_index(i)); }
