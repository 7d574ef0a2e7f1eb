// y[i] = the maximum, mean or p-norm of x under a window of up to three spatial axes. One invocation per output element.
// Expects: MAX, MEAN (neither: p-norm with P), COUNT_PAD (the mean counts taps in the padding), LOWEST (the maximum of no
// element), FLOAT,
// INNER (elements of one place that neighbour each other: the channels where these are last, else 1), and for each spatial axis
// a (missing ones have size 1): IN, OUT, K (taps), S (stride), D (dilation), H and T (padding before and after).
// Source: ONNX MaxPool, AveragePool, LpPool.
fn power(v: f32) -> f32 {
    var r = abs(v);
    for (var k = 1u; k < P; k++) { r *= abs(v); }
    return r;
}

fn root(v: f32) -> f32 {
    if (P == 1u || v == 0.0) { return v; }
    return select(pow(v, 1.0 / f32(P)), sqrt(v), P == 2u);
}

fn element(index: u32) -> y_t {
    let i = index / INNER;
    let o = vec3<i32>(vec3<u32>(i / (OUT1 * OUT2) % OUT0, i / OUT2 % OUT1, i % OUT2));
    let plane = i / (OUT0 * OUT1 * OUT2) * (IN0 * IN1 * IN2);
    let size = vec3<i32>(vec3<u32>(IN0, IN1, IN2));
    let padded = size + vec3<i32>(i32(T0), i32(T1), i32(T2));
    let start = o * vec3<i32>(i32(S0), i32(S1), i32(S2)) - vec3<i32>(i32(H0), i32(H1), i32(H2));
    var best = x_t(LOWEST);
    var found = false;
    var sum = 0.0;
    var count = 0u;
    for (var a = 0; a < i32(K0); a++) {
        let p0 = start.x + a * i32(D0);
        for (var b = 0; b < i32(K1); b++) {
            let p1 = start.y + b * i32(D1);
            for (var c = 0; c < i32(K2); c++) {
                let p = vec3<i32>(p0, p1, start.z + c * i32(D2));
                let inside = all(p >= vec3<i32>(0)) && all(p < size);
                if (inside || (COUNT_PAD && all(p < padded))) { count++; }
                if (!inside) { continue; }
                let v = x_at((plane + u32((p.x * size.y + p.y) * size.z + p.z)) * INNER + index % INNER);
                if (MAX) {
                    if (!found || v > best || (FLOAT && is_nan_f32(f32(v)))) { best = v; }
                    found = true;
                } else {
                    sum += select(power(f32(v)), f32(v), MEAN);
                }
            }
        }
    }
    if (MAX) { return y_t(best); }
    if (MEAN) { return y_t(divide_f32(sum, f32(max(count, 1u))).x); }
    return y_t(root(sum));
}
