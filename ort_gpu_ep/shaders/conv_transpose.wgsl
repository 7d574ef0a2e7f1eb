// y[n, m, q] = sum over the channels of m's group and the taps t, of those x positions p with p * stride + t * dilation - pad = q, of
// w[c, m, t] * x[n, c, p], + c[m]: gathered by one invocation for each output.
// COLUMNS: x holds the products already summed over the channels, as [n, m, t, p] (w is not read).
// Expects: x, w, c?, y; FILTERS GROUP_FILTERS CHANNELS (in a group) GROUP_COUNT; DEPTH.. of x, OUT_.. of y and the window as conv.py's
// Window.consts writes them.
const X_PLANE: u32 = DEPTH * HEIGHT * WIDTH;
const TAPS: u32 = WINDOW_Z * WINDOW_Y * WINDOW_X;
const TAP_Z: u32 = select(1u, STRIDE_Z, DILATION_Z == 1u);
const TAP_Y: u32 = select(1u, STRIDE_Y, DILATION_Y == 1u);
const TAP_X: u32 = select(1u, STRIDE_X, DILATION_X == 1u);

// The x position that tap `t` of an output at `q` (pad added) reads along one dimension; -1: none.
fn position(q: i32, t: u32, dilation: u32, stride: u32, size: u32) -> i32 {
    let at = q - i32(t * dilation);
    let p = at / i32(stride);
    return select(-1, p, at >= 0 && p * i32(stride) == at && p < i32(size));
}

// The first tap of an output at `q` that can hit an x position; from there every `stride`-th does, if taps are not dilated. A window may be far
// larger than x.
fn first_tap(q: i32, dilation: u32, stride: u32, size: u32) -> u32 {
    let beyond = q - (i32(size) - 1) * i32(stride);
    return u32(select(max(0, (beyond + i32(dilation) - 1) / i32(dilation)), max(modulo_i32(q, i32(stride)), beyond), dilation == 1u));
}

// Behind the last tap that does not read before x.
fn end_tap(q: i32, dilation: u32, window: u32) -> u32 { return select(min(window, u32(q) / dilation + 1u), 0u, q < 0); }

// Over the channels, of one tap and one x position.
fn product(w_first: u32, x_first: u32) -> f32 {
    var sum = 0.0;
    for (var channel = 0u; channel < CHANNELS; channel++) {
        sum = fma(w_at(w_first + channel * GROUP_FILTERS * TAPS), x_at(x_first + channel * X_PLANE), sum);
    }
    return sum;
}

fn element(i: u32) -> y_t {
    let qx = i32(i % OUT_WIDTH) + i32(PAD_X);
    let qy = i32(i / OUT_WIDTH % OUT_HEIGHT) + i32(PAD_Y);
    let qz = i32(i / (OUT_WIDTH * OUT_HEIGHT) % OUT_DEPTH) + i32(PAD_Z);
    let plane = i / (OUT_WIDTH * OUT_HEIGHT * OUT_DEPTH);
    let m = plane % FILTERS;
    let group = m / GROUP_FILTERS;
    let x_start = (plane / FILTERS * GROUP_COUNT + group) * CHANNELS * X_PLANE;
    let w_start = (group * CHANNELS * GROUP_FILTERS + m % GROUP_FILTERS) * TAPS;
    let end_z = end_tap(qz, DILATION_Z, WINDOW_Z);
    let end_y = end_tap(qy, DILATION_Y, WINDOW_Y);
    let end_x = end_tap(qx, DILATION_X, WINDOW_X);
    var total = 0.0;
    for (var tz = first_tap(qz, DILATION_Z, STRIDE_Z, DEPTH); tz < end_z; tz += TAP_Z) {
        let z = position(qz, tz, DILATION_Z, STRIDE_Z, DEPTH);
        if (z < 0) { continue; }
        for (var ty = first_tap(qy, DILATION_Y, STRIDE_Y, HEIGHT); ty < end_y; ty += TAP_Y) {
            let y = position(qy, ty, DILATION_Y, STRIDE_Y, HEIGHT);
            if (y < 0) { continue; }
            for (var tx = first_tap(qx, DILATION_X, STRIDE_X, WIDTH); tx < end_x; tx += TAP_X) {
                let x = position(qx, tx, DILATION_X, STRIDE_X, WIDTH);
                if (x < 0) { continue; }
                let tap = (tz * WINDOW_Y + ty) * WINDOW_X + tx;
                let p = (u32(z) * HEIGHT + u32(y)) * WIDTH + u32(x);
                if (COLUMNS) {
                    total += x_at((plane * TAPS + tap) * X_PLANE + p);
                } else {
                    total += product(w_start + tap, x_start + p);
                }
            }
        }
    }
    if (HAS_C) { total += c_at(m); }
    return total;
}
