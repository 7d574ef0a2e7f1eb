// A sum of products as a byte: saturate(round(sum * scale) + zero point), halves to even. Source: ONNX QLinearConv.
// Expects: LOW, HIGH (the range of y).
fn requantized(sum: i32, scale: f32, zero: f32) -> u32 { return u32(i32(clamp(round(f32(sum) * scale) + zero, LOW, HIGH))) & 0xffu; }
