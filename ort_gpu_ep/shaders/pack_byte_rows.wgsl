// Bytes of weights four to a word, as byte_units.wgsl reads them: y[m, k] of WORDS words a row, k as pack_bytes.wgsl has it.
// Expects: w, y; WORDS PADDED CHANNELS TAPS, SHIFT (128 for unsigned ones), and where in w they are: W_M W_CHANNEL W_TAP (strides).
fn element(i: u32) -> y_t {
    let m = i / WORDS;
    let tap = i % WORDS / PADDED;
    let channel = i % WORDS % PADDED * 4u;
    var word = 0u;
    if (tap < TAPS) {
        for (var e = 0u; e < min(4u, CHANNELS - min(channel, CHANNELS)); e++) {
            word |= (u32(i32(w_at(m * W_M + (channel + e) * W_CHANNEL + tap * W_TAP)) - i32(SHIFT)) & 0xffu) << (8u * e);
        }
    }
    return word;
}
