// Bytes of weights four to a word, as byte_product.wgsl and byte_depthwise.wgsl read them: y[k, m] with k = (tap, word of four channels),
// PADDED words a tap; zero where there is no such tap or channel.
// Expects: w, y; M PADDED CHANNELS TAPS, SHIFT (128 for unsigned ones), and where in w they are: W_M W_CHANNEL W_TAP (strides).
fn element(i: u32) -> y_t {
    let m = i % M;
    let tap = i / M / PADDED;
    let channel = i / M % PADDED * 4u;
    var word = 0u;
    if (tap < TAPS) {
        for (var e = 0u; e < min(4u, CHANNELS - min(channel, CHANNELS)); e++) {
            word |= (u32(i32(w_at(m * W_M + (channel + e) * W_CHANNEL + tap * W_TAP)) - i32(SHIFT)) & 0xffu) << (8u * e);
        }
    }
    return word;
}
