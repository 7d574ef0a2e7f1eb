// y[n, m, p] = sum over the channels of m's group and the taps of w * x + c[m], for few channels in a group (depthwise: one).
// A workgroup has one filter m and WORKGROUP_SIZE * OUTPUTS pixels p; an invocation sums OUTPUTS (at most 4) of them, WORKGROUP_SIZE apart, so a
// weight is read once for all of them and from an address that the whole workgroup shares.
// Expects: x, w, c?, y; PIXELS BLOCKS OUTPUTS FILTERS GROUP_FILTERS CHANNELS (in a group) GROUP_COUNT; DEPTH.. of x, OUT_.. of y and the
// window as conv.py's Window.consts writes them.
fn pixel(inside: bool, i: i32) -> f32 {
    if (inside) { return x_at(u32(i)); }
    return 0.0;
}

fn group_main(group: u32, lane: u32) {
    let image = group / BLOCKS / FILTERS;
    let filter_index = group / BLOCKS % FILTERS;
    let p0 = group % BLOCKS * WORKGROUP_SIZE * OUTPUTS + lane;
    let p = vec4<u32>(p0, p0 + WORKGROUP_SIZE, p0 + 2u * WORKGROUP_SIZE, p0 + 3u * WORKGROUP_SIZE);
    let z0 = vec4<i32>(p / (OUT_HEIGHT * OUT_WIDTH)) * i32(STRIDE_Z) - i32(PAD_Z);
    let y0 = vec4<i32>(p % (OUT_HEIGHT * OUT_WIDTH) / OUT_WIDTH) * i32(STRIDE_Y) - i32(PAD_Y);
    let x0 = vec4<i32>(p % OUT_WIDTH) * i32(STRIDE_X) - i32(PAD_X);
    let first = (image * GROUP_COUNT + filter_index / GROUP_FILTERS) * CHANNELS;
    var weight = filter_index * CHANNELS * WINDOW_Z * WINDOW_Y * WINDOW_X;
    var sum = vec4<f32>();
    for (var channel = 0u; channel < CHANNELS; channel++) {
        for (var tz = 0u; tz < WINDOW_Z; tz++) {
            let z = z0 + i32(tz * DILATION_Z);
            let in_z = vec4<u32>(z) < vec4<u32>(DEPTH);
            for (var ty = 0u; ty < WINDOW_Y; ty++) {
                let y = y0 + i32(ty * DILATION_Y);
                let in_y = in_z & (vec4<u32>(y) < vec4<u32>(HEIGHT));
                let row = ((i32((first + channel) * DEPTH) + z) * i32(HEIGHT) + y) * i32(WIDTH);
                for (var tx = 0u; tx < WINDOW_X; tx++) {
                    let x = x0 + i32(tx * DILATION_X);
                    let inside = in_y & (vec4<u32>(x) < vec4<u32>(WIDTH));
                    let i = row + x;
                    let w = w_at(weight);
                    weight += 1u;
                    sum.x = fma(w, pixel(inside.x, i.x), sum.x);
                    if (OUTPUTS > 1u) { sum.y = fma(w, pixel(inside.y, i.y), sum.y); }
                    if (OUTPUTS > 2u) { sum.z = fma(w, pixel(inside.z, i.z), sum.z); }
                    if (OUTPUTS > 3u) { sum.w = fma(w, pixel(inside.w, i.w), sum.w); }
                }
            }
        }
    }
    if (HAS_C) { sum += c_at(filter_index); }
    for (var e = 0u; e < OUTPUTS; e++) {
        if (p[e] < PIXELS) { y_set((image * FILTERS + filter_index) * PIXELS + p[e], sum[e]); }
    }
}
