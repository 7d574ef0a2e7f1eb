// y[i] = START + i * DELTA, modulo 2^64; an invocation per element.
// Expects: START and DELTA, each as the lower word (_LOW) and the upper one (_HIGH). Bound raw. Source: ONNX Range.
fn element(i: u32) -> y_t {
    let v = add_64(vec2(START_LOW, START_HIGH), mul_64(vec2(i, 0u), vec2(DELTA_LOW, DELTA_HIGH)));
    return y_of(v.x, v.y);
}
