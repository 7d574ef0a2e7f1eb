// y[n, c, p] = the sum of x[n, c, tap, l] over the windows l that have p as their tap. One invocation per element.
// Expects: x, DEPTH, HEIGHT, WIDTH (the image), OUT_DEPTH, OUT_HEIGHT, OUT_WIDTH (windows along each axis), and of each axis WINDOW (taps),
// STRIDE, DILATION, PAD (before).
// Source: ONNX Col2Im.

// The window whose tap `tap` is at p; -1 where there is none.
fn window_of(p: u32, tap: u32, stride: u32, dilation: u32, pad: u32, count: u32) -> i32 {
    let from_start = i32(p + pad) - i32(tap * dilation);
    if (from_start < 0 || u32(from_start) % stride != 0u || u32(from_start) / stride >= count) { return -1; }
    return from_start / i32(stride);
}

fn element(i: u32) -> y_t {
    let plane = i / (DEPTH * HEIGHT * WIDTH);
    var sum = 0.0;
    for (var tz = 0u; tz < WINDOW_Z; tz++) {
        let z = window_of(i / (HEIGHT * WIDTH) % DEPTH, tz, STRIDE_Z, DILATION_Z, PAD_Z, OUT_DEPTH);
        if (z < 0) { continue; }
        for (var ty = 0u; ty < WINDOW_Y; ty++) {
            let y = window_of(i / WIDTH % HEIGHT, ty, STRIDE_Y, DILATION_Y, PAD_Y, OUT_HEIGHT);
            if (y < 0) { continue; }
            for (var tx = 0u; tx < WINDOW_X; tx++) {
                let x = window_of(i % WIDTH, tx, STRIDE_X, DILATION_X, PAD_X, OUT_WIDTH);
                if (x < 0) { continue; }
                let tap = (tz * WINDOW_Y + ty) * WINDOW_X + tx;
                let row = plane * WINDOW_Z * WINDOW_Y * WINDOW_X + tap;
                sum += x_at(row * OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH + (u32(z) * OUT_HEIGHT + u32(y)) * OUT_WIDTH + u32(x));
            }
        }
    }
    return sum;
}
