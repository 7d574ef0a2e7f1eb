// y[i] = saturate(round(x[i] / scale) + zero point), halves to even. One invocation per element.
// Expects: x, scale, zp? (0 where left out), LOW, HIGH (the range of y), scale_index; or, where BLOCK is not 0, a scale for each BLOCK
// elements along an axis of SIZE with BLOCKS of them and INNER elements behind it. Source: ONNX QuantizeLinear.

#include scale_of_block.wgsl

// A driver's own division may be off by an ulp, which would turn halves the other way.
fn element(i: u32) -> y_t {
    let at = block_index(i);
    return y_t(clamp(round(divide_f32(x_at(i), scale_at(at)).x) + f32(zp_at(at)), LOW, HIGH));
}
