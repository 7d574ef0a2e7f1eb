// The inverse of pack_phases.wgsl: w [CHANNELS, FILTERS, WINDOW_Y, WINDOW_X].
// Expects: packed [K, M], y; M CHANNELS FILTERS WINDOW_Y WINDOW_X, TAPS_Y TAPS_X (of a phase), STEP_Y STEP_X.
fn element(i: u32) -> y_t {
    let x = i % WINDOW_X;
    let y = i / WINDOW_X % WINDOW_Y;
    let which = i / (WINDOW_X * WINDOW_Y) % FILTERS;
    let channel = i / (WINDOW_X * WINDOW_Y * FILTERS);
    let tap = (TAPS_Y - 1u - y / STEP_Y) * TAPS_X + TAPS_X - 1u - x / STEP_X;
    let phase = y % STEP_Y * STEP_X + x % STEP_X;
    return packed_at((tap * CHANNELS + channel) * M + phase * FILTERS + which);
}
