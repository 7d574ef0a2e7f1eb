// y[i, j][c, m] = (G w[m, c] G^T)[i, j], w[m, c] the 3 x 3 weights of a filter and channel, over the points of winograd_input.wgsl; zero for
// rows c of CHANNELS and more, which fill up a step of the product.
// Expects: w [M, CHANNELS, 3, 3], y [36, ROWS, M]; M CHANNELS ROWS.
const A: f32 = 0.75;
const B: f32 = 1.5;

fn transformed(i: u32, w: vec3<f32>) -> f32 {
    if (i == 0u) { return w.x / (A * A * B * B); }
    if (i == 5u) { return w.z; }
    let a = select(B, A, i < 3u);
    let b = select(A, B, i < 3u);
    let p = select(-a, a, i % 2u == 1u);
    return (w.x + p * w.y + p * p * w.z) / (2.0 * a * a * (a * a - b * b));
}

fn element(i: u32) -> y_t {
    let m = i % M;
    let channel = i / M % ROWS;
    let place = i / (M * ROWS);
    if (channel >= CHANNELS) { return 0.0; }
    let at = (m * CHANNELS + channel) * 9u;
    var rows = vec3<f32>();
#for r in 3
    rows[$r] = transformed(place % 6u, vec3<f32>(w_at(at + $(r * 3)u), w_at(at + $(r * 3 + 1)u), w_at(at + $(r * 3 + 2)u)));
#end
    return transformed(place / 6u, rows);
}
