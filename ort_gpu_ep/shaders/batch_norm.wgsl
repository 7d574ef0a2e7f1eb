// y = (x - mean) / sqrt(variance + EPSILON) * scale + bias, all four per channel. One invocation per element.
// Expects: CHANNELS, INNER (elements of a channel), EPSILON. Source: ONNX BatchNormalization, inference.
fn element(i: u32) -> y_t {
    let c = i / INNER % CHANNELS;
    return (x_at(i) - mean_at(c)) * (scale_at(c) / sqrt(variance_at(c) + EPSILON)) + bias_at(c);
}
