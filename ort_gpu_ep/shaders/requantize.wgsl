// y[i] = saturate(round(x[i] * (ALPHA * a_scale * b_scale / y_scale)) + zero point), halves to even. One invocation per element.
// Expects: x (sums), a_scale, b_scale, y_scale, zp, a_index and b_index (of an element of y), ALPHA LOW HIGH (the range of y).
// Source: ONNX QLinearMatMul.
fn element(i: u32) -> y_t {
    let scale = divide_f32(ALPHA * a_scale_at(a_index(i)) * b_scale_at(b_index(i)), y_scale_at(0u)).x;
    return y_t(clamp(round(f32(x_at(i)) * scale) + f32(zp_at(0u)), LOW, HIGH));
}
