#default DEEP = 0
// Weights of a ConvTranspose as product.wgsl reads them: y[k, m] with k = (tap, channel), m = (phase, filter). Of the pixels that an input
// pixel makes, STEP_Y x STEP_X apart, each phase sees every STEP-th tap, the last first; zero where there is none.
// Expects: w [CHANNELS, FILTERS, WINDOW_Y, WINDOW_X], y; M, TAPS_Y TAPS_X (of a phase), STEP_Y STEP_X.
#if DEEP
// Over three spatial dimensions: also WINDOW_Z TAPS_Z STEP_Z, each before those of Y.
#end
fn element(i: u32) -> y_t {
    let m = i % M;
    let k = i / M;
    let channel = k % CHANNELS;
#if DEEP
    let own_tap = k / CHANNELS;
    let own_phase = m / FILTERS;
    let tap = own_tap % $(TAPS_Y * TAPS_X)u;
    let phase = own_phase % $(STEP_Y * STEP_X)u;
    let z = own_phase / $(STEP_Y * STEP_X)u + STEP_Z * (TAPS_Z - 1u - own_tap / $(TAPS_Y * TAPS_X)u);
    if (own_tap >= $(TAPS_Z * TAPS_Y * TAPS_X)u || own_phase >= $(STEP_Z * STEP_Y * STEP_X)u || z >= WINDOW_Z) { return 0.0; }
#else
    let tap = k / CHANNELS;
    let phase = m / FILTERS;
#end
    if (tap >= TAPS_Y * TAPS_X || phase >= STEP_Y * STEP_X) { return 0.0; }
    let y = phase / STEP_X + STEP_Y * (TAPS_Y - 1u - tap / TAPS_X);
    let x = phase % STEP_X + STEP_X * (TAPS_X - 1u - tap % TAPS_X);
    if (y >= WINDOW_Y || x >= WINDOW_X) { return 0.0; }
#if DEEP
    return w_at((((channel * FILTERS + m % FILTERS) * WINDOW_Z + z) * WINDOW_Y + y) * WINDOW_X + x);
#else
    return w_at(((channel * FILTERS + m % FILTERS) * WINDOW_Y + y) * WINDOW_X + x);
#end
}
