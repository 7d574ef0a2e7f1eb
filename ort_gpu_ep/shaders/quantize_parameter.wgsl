// y[0] = the scale, or the zero point, that maps the range of all parts onto 0 ... 255.
// Expects: range (min, max of each part), PARTS, ZERO_POINT (which of the two). Source: ONNX DynamicQuantizeLinear.
fn element(i: u32) -> y_t {
    var least = 0.0;
    var most = 0.0;
    for (var k = 0u; k < PARTS; k++) {
        least = min(least, range_at(2u * k));
        most = max(most, range_at(2u * k + 1u));
    }
    let scale = select(1.0, divide_f32(most - least, 255.0).x, most > least);   // of zeros alone: 1, as ONNX Runtime has it
    if (!ZERO_POINT) { return y_t(scale); }
    return y_t(clamp(round(divide_f32(-least, scale).x), 0.0, 255.0));
}
