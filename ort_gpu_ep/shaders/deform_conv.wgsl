// y[n, m, p] = c[m] + the sum over channels and taps of w * mask * x, x read at p's tap moved by offset, between four elements, zeros
// outside. One invocation per element.
// Expects: x, w, offset, c?, mask? (1 where left out), CHANNELS (of a group), FILTERS, GROUPS_OF_X, MOVED (groups of channels with offsets of
// their own), HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, and of the axes Y and X WINDOW, STRIDE, DILATION, PAD.
// Source: ONNX DeformConv. A place may be anything that data bring: it is compared with the image before it becomes an index.
fn pixel(plane: u32, y: f32, x: f32) -> f32 {
    if (!(y >= 0.0 && x >= 0.0 && y <= f32(HEIGHT - 1u) && x <= f32(WIDTH - 1u))) { return 0.0; }
    return x_at((plane * HEIGHT + min(u32(y), HEIGHT - 1u)) * WIDTH + min(u32(x), WIDTH - 1u));
}

fn between(plane: u32, y: f32, x: f32) -> f32 {
    if (!(y > -1.0 && x > -1.0 && y < f32(HEIGHT) && x < f32(WIDTH))) { return 0.0; }
    let y0 = floor(y);
    let x0 = floor(x);
    let v = y - y0;
    let u = x - x0;
    return (1.0 - v) * ((1.0 - u) * pixel(plane, y0, x0) + u * pixel(plane, y0, x0 + 1.0))
        + v * ((1.0 - u) * pixel(plane, y0 + 1.0, x0) + u * pixel(plane, y0 + 1.0, x0 + 1.0));
}

fn element(i: u32) -> y_t {
    let pixels = OUT_HEIGHT * OUT_WIDTH;
    let p = i % pixels;
    let m = i / pixels % FILTERS;
    let n = i / pixels / FILTERS;
    let first = m / (FILTERS / GROUPS_OF_X) * CHANNELS;
    let taps = WINDOW_Y * WINDOW_X;
    let y0 = f32(p / OUT_WIDTH * STRIDE_Y) - f32(PAD_Y);
    let x0 = f32(p % OUT_WIDTH * STRIDE_X) - f32(PAD_X);
    var sum = 0.0;
    for (var c = 0u; c < CHANNELS; c++) {
        let channel = first + c;
        let moved = n * MOVED + channel / (CHANNELS * GROUPS_OF_X / MOVED);
        var part = 0.0;
        for (var ty = 0u; ty < WINDOW_Y; ty++) {
            for (var tx = 0u; tx < WINDOW_X; tx++) {
                let tap = ty * WINDOW_X + tx;
                let at = (moved * taps + tap) * 2u * pixels + p;
                let y = y0 + f32(ty * DILATION_Y) + offset_at(at);
                let x = x0 + f32(tx * DILATION_X) + offset_at(at + pixels);
                var v = w_at((m * CHANNELS + c) * taps + tap) * between(n * CHANNELS * GROUPS_OF_X + channel, y, x);
                if (HAS_MASK) { v *= mask_at((moved * taps + tap) * pixels + p); }
                part += v;
            }
        }
        sum += part;
    }
    if (HAS_C) { sum += c_at(m); }
    return sum;
}
