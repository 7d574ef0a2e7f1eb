// What pack_bytes.wgsl has packed, as the model has it: y[m, channel, tap], or with M_LAST y[channel, m].
// Expects: packed; M PADDED CHANNELS TAPS M_LAST, SHIFT (128 for unsigned ones).
fn element(i: u32) -> y_t {
#if M_LAST
    let m = i % M;
    let channel = i / M;
    let tap = 0u;
#else
    let m = i / (CHANNELS * TAPS);
    let channel = i / TAPS % CHANNELS;
    let tap = i % TAPS;
#end
    let word = packed_at((tap * PADDED + channel / 4u) * M + m);
    return y_t(extractBits(bitcast<i32>(word), channel % 4u * 8u, 8u) + i32(SHIFT));
}
