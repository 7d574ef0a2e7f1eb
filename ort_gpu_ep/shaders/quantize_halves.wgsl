// quantize.wgsl with its division in float16: y[i] = saturate(round(half(half(x[i]) / half(scale))) + zero point). Expects the same.
// Source: ONNX QuantizeLinear, `precision`.
#include scale_of_block.wgsl

fn element(i: u32) -> y_t {
    let at = block_index(i);
    let quotient = divide_f32(half_f32(x_at(i)), half_f32(scale_at(at))).x;
    return y_t(clamp(round(half_f32(quotient)) + f32(zp_at(at)), LOW, HIGH));
}
