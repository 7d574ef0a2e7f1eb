// y[i] = saturate(round(x[i] / scale) + zero point), halves to even. One invocation per element.
// Expects: x, scale, zp? (0 where left out), scale_index, LOW, HIGH (the range of y). Source: ONNX QuantizeLinear.

// x / s rounded correctly: a driver's division may be off by an ulp, which would turn halves the other way. The rest of the
// division is exact in pieces of 12 bits.
fn quotient(x: f32, s: f32) -> f32 {
    let q = x / s;
    let q_high = head_f32(q);
    let s_high = head_f32(s);
    let rest = ((x - q_high * s_high) - q_high * (s - s_high)) - (q - q_high) * s_high - (q - q_high) * (s - s_high);
    return select(q, q + rest / s, abs(q) < 1e6);
}

fn element(i: u32) -> y_t {
    let at = scale_index(i);
    return y_t(clamp(round(quotient(x_at(i), scale_at(at))) + f32(zp_at(at)), LOW, HIGH));
}
