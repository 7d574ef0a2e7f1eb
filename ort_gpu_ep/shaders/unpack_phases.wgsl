#default DEEP = 0
// The inverse of pack_phases.wgsl: w [CHANNELS, FILTERS, WINDOW_Y, WINDOW_X].
// Expects: packed [K, M], y; M CHANNELS FILTERS WINDOW_Y WINDOW_X, TAPS_Y TAPS_X (of a phase), STEP_Y STEP_X.
#if DEEP
// Over three spatial dimensions: also WINDOW_Z TAPS_Z STEP_Z.
#end
fn element(i: u32) -> y_t {
    let x = i % WINDOW_X;
    let y = i / WINDOW_X % WINDOW_Y;
#if DEEP
    let z = i / (WINDOW_X * WINDOW_Y) % WINDOW_Z;
    let which = i / (WINDOW_X * WINDOW_Y * WINDOW_Z) % FILTERS;
    let channel = i / (WINDOW_X * WINDOW_Y * WINDOW_Z * FILTERS);
    let tap = ((TAPS_Z - 1u - z / STEP_Z) * TAPS_Y + TAPS_Y - 1u - y / STEP_Y) * TAPS_X + TAPS_X - 1u - x / STEP_X;
    let phase = (z % STEP_Z * STEP_Y + y % STEP_Y) * STEP_X + x % STEP_X;
#else
    let which = i / (WINDOW_X * WINDOW_Y) % FILTERS;
    let channel = i / (WINDOW_X * WINDOW_Y * FILTERS);
    let tap = (TAPS_Y - 1u - y / STEP_Y) * TAPS_X + TAPS_X - 1u - x / STEP_X;
    let phase = y % STEP_Y * STEP_X + x % STEP_X;
#end
    return packed_at((tap * CHANNELS + channel) * M + phase * FILTERS + which);
}
