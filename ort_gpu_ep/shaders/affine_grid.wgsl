// y[n, z, y, x, k] = the sum over j of theta[n, k, j] * (x, y, z, 1)[j], of places in [-1, 1]. One invocation per element.
// Expects: theta, AXES (2 or 3; of 2, there is no z), DEPTH, HEIGHT, WIDTH, ALIGN (-1 and 1 are the centers of the outermost elements, else
// their outer edges).
// Source: ONNX AffineGrid. Of an axis of one element, ALIGN takes 1, as ONNX Runtime's CPU has it.
fn along(i: u32, size: u32) -> f32 {
    if (!ALIGN) { return divide_f32(f32(2u * i + 1u), f32(size)).x - 1.0; }
    if (size == 1u) { return 1.0; }
    return divide_f32(f32(2u * i), f32(size - 1u)).x - 1.0;
}

fn element(i: u32) -> y_t {
    let p = i / AXES;
    let row = (p / (DEPTH * HEIGHT * WIDTH) * AXES + i % AXES) * (AXES + 1u);
    var sum = theta_at(row) * along(p % WIDTH, WIDTH) + theta_at(row + 1u) * along(p / WIDTH % HEIGHT, HEIGHT);
    if (AXES == 3u) { sum += theta_at(row + 2u) * along(p / (WIDTH * HEIGHT) % DEPTH, DEPTH); }
    return sum + theta_at(row + AXES);
}
