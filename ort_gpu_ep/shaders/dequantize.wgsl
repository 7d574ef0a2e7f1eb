// y[i] = (x[i] - zero point) * scale. One invocation per element.
// Expects: x, scale, zp? (0 where left out), scale_index, BLOCK SIZE BLOCKS INNER (as quantize.wgsl). Source: ONNX DequantizeLinear.
#include scale_of_block.wgsl

fn element(i: u32) -> y_t {
    let at = block_index(i);
    return f32(i32(x_at(i)) - i32(zp_at(at))) * scale_at(at);
}
