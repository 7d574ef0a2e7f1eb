// y[row, k] = l * gelu(r), with l and r the halves of x[row] + bias: a gated activation. One invocation per element.
// Expects: x, bias, y; D (elements of a half). Source: BiasSplitGelu of ONNX Runtime (com.microsoft).
fn element(i: u32) -> y_t {
    let k = i % D;
    let at = i / D * 2u * D + k;
    let r = x_at(at + D) + bias_at(k + D);
    return (x_at(at) + bias_at(k)) * 0.5 * r * (1.0 + erf_f32(r * 0.70710678));
}
