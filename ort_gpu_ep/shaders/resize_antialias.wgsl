// y[i] = the mean of the elements of x around the place that corresponds to i, weighted by a filter as wide as its step in x: of a smaller
// image, each element counts. One invocation per output element.
// Expects: KIND (1 linear, 2 cubic), COORDINATES, CUBIC_A, EXCLUDE_OUTSIDE (elements beyond the border don't count, else the outermost
// stands for them); kept, the position in x by the axes that are not resized; and for each of three resized axes a what resize.wgsl has,
// with WIDEa (how far the filter reaches, in elements of x), FACTORa (its width in filters) and TAPSa (elements at most).
// Source: ONNX Resize with antialias; the first and last element, onnxruntime, upsample_antialias.h.
struct Around { first: i32, count: u32, center: f32, sum: f32 }

#include resize_coordinate.wgsl

fn weight(at: i32, center: f32, factor: f32) -> f32 {
    let t = abs((f32(at) - center + 0.5) * factor);
    if (KIND == 1u) { return max(1.0 - t, 0.0); }
    if (t < 1.0) { return ((CUBIC_A + 2.0) * t - (CUBIC_A + 3.0)) * t * t + 1.0; }
    if (t < 2.0) { return ((CUBIC_A * t - 5.0 * CUBIC_A) * t + 8.0 * CUBIC_A) * t - 4.0 * CUBIC_A; }
    return 0.0;
}

fn counts(at: i32, size: u32) -> bool { return !EXCLUDE_OUTSIDE || (at >= 0 && at < i32(size)); }

fn around(o: u32, size: u32, out: u32, scale: f32, start: f32, width: f32, center: f32, wide: f32, factor: f32, taps: u32) -> Around {
    let middle = coordinate(f32(o), scale, f32(size), f32(out), start, width, center) + 0.5;
    let first = i32(floor(middle - wide + 0.5));
    let count = min(u32(max(i32(floor(middle + wide + 0.5)) - first, 0)), taps);
    var sum = 0.0;
    for (var k = 0u; k < count; k++) {
        if (counts(first + i32(k), size)) { sum += weight(first + i32(k), middle, factor); }
    }
    return Around(first, count, middle, sum);
}

fn place(at: i32, size: u32, stride: u32) -> u32 { return u32(clamp(at, 0, i32(size) - 1)) * stride; }

#default WHOLE = 0
#if WHOLE
// WHOLE (left out: no): x and y are unsigned bytes, whose weights are steps of 2^-22; each line is a byte, too, as in ONNX Runtime.
// What lies beyond the border counts with the outermost elements.
fn steps(at: i32, s: Around, size: u32, factor: f32) -> i32 {
    var total = 0.0;
    if (counts(at, size)) { total = weight(at, s.center, factor); }
    if (!EXCLUDE_OUTSIDE && at == 0) {
        for (var k = s.first; k < 0; k++) { total += weight(k, s.center, factor); }
    }
    if (!EXCLUDE_OUTSIDE && at == i32(size) - 1) {
        for (var k = i32(size); k < s.first + i32(s.count); k++) { total += weight(k, s.center, factor); }
    }
    let part = total * divide_f32(1.0, s.sum).x * 4194304.0;
    return i32(sign(part) * floor(abs(part) + 0.5));
}

fn byte_of(sum: i32) -> i32 { return clamp(sum >> 22u, 0, 255); }

fn element(i: u32) -> y_t {
    let s1 = around(i / STEP1 % OUT1, IN1, OUT1, SCALE1, START1, WIDTH1, CENTER1, WIDE1, FACTOR1, TAPS1);
    let s2 = around(i / STEP2 % OUT2, IN2, OUT2, SCALE2, START2, WIDTH2, CENTER2, WIDE2, FACTOR2, TAPS2);
    var sum = 2097152;
    for (var y = max(s1.first, 0); y < min(s1.first + i32(s1.count), i32(IN1)); y++) {
        var line = 2097152;
        for (var x = max(s2.first, 0); x < min(s2.first + i32(s2.count), i32(IN2)); x++) {
            line += steps(x, s2, IN2, FACTOR2) * i32(x_at(kept(i) + u32(y) * STRIDE1 + u32(x) * STRIDE2));
        }
        sum += steps(y, s1, IN1, FACTOR1) * byte_of(line);
    }
    return y_t(byte_of(sum));
}
#else
fn element(i: u32) -> y_t {
    let s0 = around(i / STEP0 % OUT0, IN0, OUT0, SCALE0, START0, WIDTH0, CENTER0, WIDE0, FACTOR0, TAPS0);
    let s1 = around(i / STEP1 % OUT1, IN1, OUT1, SCALE1, START1, WIDTH1, CENTER1, WIDE1, FACTOR1, TAPS1);
    let s2 = around(i / STEP2 % OUT2, IN2, OUT2, SCALE2, START2, WIDTH2, CENTER2, WIDE2, FACTOR2, TAPS2);
    let base = kept(i);
    var sum = 0.0;
    for (var a = 0u; a < s0.count; a++) {
        let z = s0.first + i32(a);
        if (!counts(z, IN0)) { continue; }
        var plane = 0.0;
        for (var b = 0u; b < s1.count; b++) {
            let y = s1.first + i32(b);
            if (!counts(y, IN1)) { continue; }
            let row = base + place(z, IN0, STRIDE0) + place(y, IN1, STRIDE1);
            var line = 0.0;
            for (var c = 0u; c < s2.count; c++) {
                let x = s2.first + i32(c);
                if (counts(x, IN2)) { line += weight(x, s2.center, FACTOR2) * x_at(row + place(x, IN2, STRIDE2)); }
            }
            plane += weight(y, s1.center, FACTOR1) * (line / s2.sum);
        }
        sum += weight(z, s0.center, FACTOR0) * (plane / s1.sum);
    }
    return sum / s0.sum;
}
#end
