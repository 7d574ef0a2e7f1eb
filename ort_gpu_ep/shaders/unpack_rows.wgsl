// The inverse of pack_rows.wgsl: w as the model stores it, [M, CHANNELS, TAPS], or with M_LAST [CHANNELS, M].
// Expects: packed [K, M], k = (tap, channel padded to PADDED), y; M PADDED CHANNELS TAPS M_LAST.
fn element(i: u32) -> y_t {
    if (M_LAST) { return packed_at(i); }
    let m = i / (CHANNELS * TAPS);
    let channel = i / TAPS % CHANNELS;
    let tap = i % TAPS;
    return packed_at((tap * PADDED + channel) * M + m);
}
