// y[i] = x sampled at the place in x that corresponds to i: its nearest element, or a weighted sum of 2 (linear) or 4 (cubic)
// elements along each resized axis. One invocation per output element.
// Expects: KIND (0 nearest, 1 linear, 2 cubic), COORDINATES and ROUNDING (codes below), CUBIC_A, EXCLUDE_OUTSIDE, EXTRAPOLATE and
// OUTSIDE (the value there); kept, the position in x by the axes that are not resized; and for each of three resized axes a
// (missing ones have TAPS = 1, IN = 1): IN and OUT (sizes), STRIDE and STEP (between neighbours, in x and in y), TAPS, SCALE,
// START, WIDTH and CENTER (tf_crop_and_resize: where the region starts, its relative width, its middle; half_pixel_symmetric:
// offset - 0.5 is START, of few digits so that adding it to a quotient is exact, + WIDTH).
// Source: ONNX Resize, Upsample. Coordinates are rounded step by step as ONNX Runtime's CPU kernel rounds them: at a tie between
// two elements, one bit decides. Compilers may reorder float additions and multiplications: `apart_f32` prevents it.
#include resize_sample.wgsl

#default WHOLE = 0
#if WHOLE
// WHOLE (left out: no): x and y are bytes, and KIND is 1. Rounded as ONNX Runtime rounds them: 1, products are added from the first on,
// and the sum loses its fraction; 2, in steps of 2^-10 for each of two axes.
fn whole(base: u32, s0: Sample, s1: Sample, s2: Sample) -> y_t {
    var sum = 0.0;
    var steps = 0;
    for (var a = 0u; a < TAPS0; a++) {
        for (var b = 0u; b < TAPS1; b++) {
            for (var c = 0u; c < TAPS2; c++) {
                let v = x_at(base + place(s0.first, a, IN0, STRIDE0) + place(s1.first, b, IN1, STRIDE1) + place(s2.first, c, IN2, STRIDE2));
                let weight = apart_f32(apart_f32(s2.weights[c] * s1.weights[b]) * s0.weights[a]);
                sum = apart_f32(sum + apart_f32(weight * f32(v)));
                let far = vec2<i32>(i32(s1.weights.y * 1024.0), i32(s2.weights.y * 1024.0));
                steps += select(1024 - far.x, far.x, b == 1u) * select(1024 - far.y, far.y, c == 1u) * i32(v);
            }
        }
    }
    if (WHOLE == 2u) { return y_t(steps / 1048576); }
    return y_t(sum);
}

#end
fn element(i: u32) -> y_t {
#include resize_axes.wgsl
    if (s0.outside || s1.outside || s2.outside) { return y_t(OUTSIDE); }
    let base = kept(i);
    if (KIND == 0u) {
        return x_at(base + u32(s0.first) * STRIDE0 + u32(s1.first) * STRIDE1 + u32(s2.first) * STRIDE2);
    }
#if WHOLE
    return whole(base, s0, s1, s2);
#else
    var sum = 0.0;
    for (var a = 0u; a < TAPS0; a++) {
        let p0 = base + place(s0.first, a, IN0, STRIDE0);
        var plane = 0.0;
        for (var b = 0u; b < TAPS1; b++) {
            let p1 = p0 + place(s1.first, b, IN1, STRIDE1);
            var line = 0.0;
            for (var c = 0u; c < TAPS2; c++) { line += s2.weights[c] * f32(x_at(p1 + place(s2.first, c, IN2, STRIDE2))); }
            plane += s1.weights[b] * line;
        }
        sum += s0.weights[a] * plane;
    }
    return y_t(sum);
#end
}
