// turns[2 r] = cos(2 pi r / N), turns[2 r + 1] = sin(2 pi r / N). One invocation per element.
// Expects: N. The nearest quarter is taken off as an integer, so that the angle is exact to a rounding wherever it lies.
fn element(i: u32) -> turns_t {
    let r = i / 2u;
    let quarter = (8u * r + N) / (2u * N);
    let rest = f32(i32(4u * r) - i32(quarter * N)) / f32(N);
    return sin_turned_f32(1.57079633 * rest, quarter + 1u - i % 2u);
}
