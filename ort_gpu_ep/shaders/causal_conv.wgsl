// y[b, c, l] = act(bias[c] + sum over j < TAPS of w[c, j] v[b, c, l + j DILATION]), where v is the state (STATE values, 0 without one) with x behind
// it; or (PRESENT) the last STATE values of v. One invocation per element.
// Expects: x, w, bias?, past?, y; LENGTH (of x), ROWS (of y), CHANNELS, LAST (channels are the last axis, else the second), ACTIVATED (silu).
// Source: ONNX CausalConvWithState.
fn place(b: u32, c: u32, row: u32, rows: u32) -> u32 {
    return b * rows * CHANNELS + select(c * rows + row, row * CHANNELS + c, LAST);
}

fn value(b: u32, c: u32, row: u32) -> f32 {
    if (row >= STATE) { return x_at(place(b, c, min(row - STATE, LENGTH - 1u), LENGTH)); }
#if HAS_PAST
    return past_at(place(b, c, row, STATE));
#else
    return 0.0;
#end
}

fn element(i: u32) -> y_t {
    let b = i / (ROWS * CHANNELS);
    let c = select(i / ROWS % CHANNELS, i % CHANNELS, LAST);
    let row = select(i % ROWS, i / CHANNELS % ROWS, LAST);
#if PRESENT
    return value(b, c, LENGTH + row);
#else
#if HAS_BIAS
    var sum = bias_at(c);
#else
    var sum = 0.0;
#end
    for (var j = 0u; j < TAPS; j++) { sum = fma(w_at(c * TAPS + j), value(b, c, row + j * DILATION), sum); }
    return select(sum, sum * sigmoid_f32(sum), ACTIVATED);
#end
}
