// Weights for matrix_product.wgsl in float16, each column times its power of two: y[k, m] with k = (tap, channel padded to PADDED), zero
// where there is none. Expects: w, scales [M], y; M PADDED CHANNELS TAPS, and where in w they are: W_M W_CHANNEL W_TAP (strides).
fn element(i: u32) -> y_t {
    let m = i % M;
    let k = i / M;
    let channel = k % PADDED;
    let tap = k / PADDED;
    if (channel < CHANNELS && tap < TAPS) { return w_at(m * W_M + channel * W_CHANNEL + tap * W_TAP) * scales_at(m); }
    return 0.0;
}
