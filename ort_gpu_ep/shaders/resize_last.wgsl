// y[place, c] = x[., c] sampled at the place in x that corresponds to it, where the last axis is not resized: four neighbours of it an
// invocation. Expects: x, y as vectors, TOTAL (vectors of y), and what resize.wgsl does, but WHOLE.
// Source: ONNX Resize, Upsample.
#include resize_sample.wgsl

fn resized(i: u32) -> vec4<f32> {
#include resize_axes.wgsl
    if (s0.outside || s1.outside || s2.outside) { return vec4<f32>(f32(OUTSIDE)); }
    let base = kept(i);
    if (KIND == 0u) {
        return x_at4((base + u32(s0.first) * STRIDE0 + u32(s1.first) * STRIDE1 + u32(s2.first) * STRIDE2) / 4u);
    }
    var sum = vec4<f32>();
    for (var a = 0u; a < TAPS0; a++) {
        let p0 = base + place(s0.first, a, IN0, STRIDE0);
        var plane = vec4<f32>();
        for (var b = 0u; b < TAPS1; b++) {
            let p1 = p0 + place(s1.first, b, IN1, STRIDE1);
            var line = vec4<f32>();
            for (var c = 0u; c < TAPS2; c++) { line += s2.weights[c] * x_at4((p1 + place(s2.first, c, IN2, STRIDE2)) / 4u); }
            plane += s1.weights[b] * line;
        }
        sum += s0.weights[a] * plane;
    }
    return sum;
}

fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i < TOTAL) { y_set4(i, resized(4u * i)); }
}
