// ONNX Runtime 1.31 takes a coordinate for a tie within 1e-6 (measured).
const TIE: f32 = 1e-6;
struct Sample { first: i32, weights: vec4<f32>, outside: bool }

#include resize_coordinate.wgsl

fn rounded(x: f32, scale: f32) -> f32 {
    let below = floor(x);
    let tie = abs(x - below - 0.5) < TIE;
    let near = below + select(0.0, 1.0, x - below > 0.5);
    switch ROUNDING {
        case 1u: { return select(near, below, tie); }                                          // round_prefer_floor
        case 2u: { return select(near, below + 1.0, tie); }                                    // round_prefer_ceil
        case 3u: { return floor(x); }
        case 4u: { return ceil(x); }
        default: { return select(trunc(x), ceil(x), scale < 1.0); }                                   // before opset 11
    }
}

fn cubic(s: f32) -> vec4<f32> {
    let t = vec4<f32>(1.0 + s, s, 1.0 - s, 2.0 - s);
    let far = ((CUBIC_A * t - 5.0 * CUBIC_A) * t + 8.0 * CUBIC_A) * t - 4.0 * CUBIC_A;
    let near = ((CUBIC_A + 2.0) * t - (CUBIC_A + 3.0)) * t * t + 1.0;
    return vec4<f32>(far.x, near.y, near.z, far.w);
}

fn sample(o: u32, size: u32, out: u32, scale: f32, start: f32, width: f32, center: f32) -> Sample {
    let last = f32(size) - 1.0;
    let x = coordinate(f32(o), scale, f32(size), f32(out), start, width, center);
    let outside = EXTRAPOLATE && (x < 0.0 || x > last);
    if (KIND == 0u) { return Sample(i32(clamp(rounded(x, scale), 0.0, last)), vec4<f32>(1.0), outside); }
    if (KIND == 1u) {
        let inner = clamp(x, 0.0, last);
        let f = inner - floor(inner);
        return Sample(i32(inner), select(vec4<f32>(1.0 - f, f, 0.0, 0.0), vec4<f32>(0.5), floor(inner) == last), outside);
    }
    let first = i32(floor(x)) - 1;
    var w = cubic(x - floor(x));
    if (EXCLUDE_OUTSIDE) {
        let at = vec4<i32>(first) + vec4<i32>(0, 1, 2, 3);
        w = select(vec4<f32>(0.0), w, (at >= vec4<i32>(0)) & (at < vec4<i32>(i32(size))));
        w /= w.x + w.y + w.z + w.w;
    }
    return Sample(first, w, outside);
}

fn place(first: i32, tap: u32, size: u32, stride: u32) -> u32 { return u32(clamp(first + i32(tap), 0, i32(size) - 1)) * stride; }
