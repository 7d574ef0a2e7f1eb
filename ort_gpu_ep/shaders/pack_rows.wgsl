// Weights as product.wgsl reads them: y[k, m] with k = (tap, channel padded to PADDED), zero where there is no such tap, channel or filter.
// Expects: w, y; M PADDED CHANNELS TAPS FILTERS (of M columns, those that w has), and where in w they are: W_M W_CHANNEL W_TAP (strides).
fn element(i: u32) -> y_t {
    let m = i % M;
    let k = i / M;
    let channel = k % PADDED;
    let tap = k / PADDED;
    if (channel < CHANNELS && tap < TAPS && m < FILTERS) { return w_at(m * W_M + channel * W_CHANNEL + tap * W_TAP); }
    return 0.0;
}
