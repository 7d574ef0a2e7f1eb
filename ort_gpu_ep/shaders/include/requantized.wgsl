// A sum of products as a byte of output c: saturate(round(sum * scale) + zero point), halves to even. Source: ONNX QLinearConv.
// Expects: numbers, as quantized_outputs.wgsl writes them, OUTPUTS, LOW, HIGH (the range of y).
fn requantized(sum: i32, c: u32) -> u32 {
    let scaled = round(f32(sum + bitcast<i32>(numbers_at(c))) * bitcast<f32>(numbers_at(OUTPUTS + c)));
    return u32(i32(clamp(scaled + f32(bitcast<i32>(numbers_at(2u * OUTPUTS))), LOW, HIGH))) & 0xffu;
}
