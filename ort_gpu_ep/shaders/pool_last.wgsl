// y[place, c] = the maximum or mean of x[., c] under a window of two spatial axes, channels together: four of them an invocation.
// Expects: x, y as vectors, TOTAL (vectors of y), INNER (vectors of a place), MAX (else the mean), COUNT_PAD (the mean counts taps in the
// padding), and for the spatial axes a = 1 and 2: IN, OUT, K (taps), S (stride), D (dilation), H and T (padding before and after).
// Source: ONNX MaxPool, AveragePool.
fn group_main(group: u32, lane: u32) {
#include pooled_place.wgsl
    var result = vec4<f32>();
    var found = false;
    var count = 0u;
    for (var a = 0u; a < K1; a++) {
        let y = top + i32(a * D1);
        for (var b = 0u; b < K2; b++) {
            let x = left + i32(b * D2);
            let inside = u32(y) < IN1 && u32(x) < IN2;
            if (inside || (COUNT_PAD && y < i32(IN1 + T1) && x < i32(IN2 + T2))) { count++; }
            if (!inside) { continue; }
            let v = x_at4(((image * IN1 + u32(y)) * IN2 + u32(x)) * INNER + channel);
            if (MAX) {
                let is_nan = (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
                result = select(result, v, vec4<bool>(!found) | (v > result) | is_nan);
                found = true;
            } else {
                result += v;
            }
        }
    }
    if (MAX) {
        y_set4(i, select(vec4<f32>(-3.4028234663852886e38), result, found));
    } else {
        y_set4(i, result / f32(max(count, 1u)));
    }
}
