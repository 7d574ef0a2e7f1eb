// y = x / (BIAS + ALPHA / SIZE * sum x^2 over the neighbouring channels)^BETA. One invocation per element.
// Expects: CHANNELS, INNER (elements of a channel), BEFORE and AFTER (neighbours on each side), FACTOR (ALPHA / SIZE), BIAS, BETA.
// Source: ONNX LRN.
fn element(i: u32) -> y_t {
    let c = i32(i / INNER % CHANNELS);
    var sum = 0.0;
    for (var k = max(c - i32(BEFORE), 0); k <= min(c + i32(AFTER), i32(CHANNELS) - 1); k++) {
        let v = x_at(u32(i32(i) + (k - c) * i32(INNER)));
        sum += v * v;
    }
    let base = BIAS + FACTOR * sum;
    if (BETA == 0.75) { return x_at(i) / (sqrt(base) * sqrt(sqrt(base))); }
    return x_at(i) / pow(base, BETA);
}
