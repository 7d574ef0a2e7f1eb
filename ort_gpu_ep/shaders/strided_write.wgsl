// y[y_index(i)] = x[i], an invocation per element of x: one tensor written into its place in a larger one.
// Expects: x, y, y_index (Strided over x's shape), SIZE (elements of x). Not for packed y: words may be shared.
fn group_main(group: u32, lane: u32) {
    let i = group * LANES + lane;
    if (i < SIZE) { y_set(y_index(i), x_at(i)); }
}
