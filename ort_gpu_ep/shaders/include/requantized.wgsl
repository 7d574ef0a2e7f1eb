// Four sums of products as bytes: saturate(round(sum * scale) + zero point), halves to even. Source: ONNX QLinearConv.
// Expects: y, LOW, HIGH (the range of y).
fn requantized(sum: vec4<i32>, scale: vec4<f32>, zero: f32) -> vec4<y_t> {
    return vec4<y_t>(clamp(round(vec4<f32>(sum) * scale) + zero, vec4<f32>(LOW), vec4<f32>(HIGH)));
}
