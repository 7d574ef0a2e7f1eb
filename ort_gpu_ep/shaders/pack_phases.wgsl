// Weights of a ConvTranspose as product.wgsl reads them: y[k, m] with k = (tap, channel), m = (phase, filter). Of the pixels that an input
// pixel makes, STEP_Y x STEP_X apart, each phase sees every STEP-th tap, the last first; zero where there is none.
// Expects: w [CHANNELS, FILTERS, WINDOW_Y, WINDOW_X], y; M, TAPS_Y TAPS_X (of a phase), STEP_Y STEP_X.
fn element(i: u32) -> y_t {
    let m = i % M;
    let k = i / M;
    let channel = k % CHANNELS;
    let tap = k / CHANNELS;
    let phase = m / FILTERS;
    if (tap >= TAPS_Y * TAPS_X || phase >= STEP_Y * STEP_X) { return 0.0; }
    let y = phase / STEP_X + STEP_Y * (TAPS_Y - 1u - tap / TAPS_X);
    let x = phase % STEP_X + STEP_X * (TAPS_X - 1u - tap % TAPS_X);
    if (y >= WINDOW_Y || x >= WINDOW_X) { return 0.0; }
    return w_at(((channel * FILTERS + m % FILTERS) * WINDOW_Y + y) * WINDOW_X + x);
}
