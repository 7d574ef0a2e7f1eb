// y[place, c] = the maximum or mean of x[., c] under a window of two spatial axes, channels together, of bytes: four channels an invocation.
// Expects: x, y, TOTAL (words of y), INNER (words of a place), MAX (else the mean, from x's scale and zero point to y's: x_scale, x_zp?,
// y_scale, y_zp?, LOW and HIGH, the range of y), SIGNED, COUNT_PAD (the mean counts taps in the padding), and for the spatial axes a = 1
// and 2: IN, OUT, K (taps), S (stride), D (dilation), H and T (padding before and after).
// Source: ONNX MaxPool; com.microsoft QLinearAveragePool.
#if SIGNED
fn numbers(word: u32) -> vec4<i32> { return unpack4xI8(word); }
#else
fn numbers(word: u32) -> vec4<i32> { return vec4<i32>(unpack4xU8(word)); }
#end

fn group_main(group: u32, lane: u32) {
#include pooled_place.wgsl
    var best = vec4<i32>(select(0, -128, SIGNED));
    var sum = vec4<f32>();
    var count = 0u;
    for (var a = 0u; a < K1; a++) {
        let y = top + i32(a * D1);
        for (var b = 0u; b < K2; b++) {
            let x = left + i32(b * D2);
            let inside = u32(y) < IN1 && u32(x) < IN2;
            if (inside || (COUNT_PAD && y < i32(IN1 + T1) && x < i32(IN2 + T2))) { count++; }
            if (!inside) { continue; }
            let v = numbers(x_word(((image * IN1 + u32(y)) * IN2 + u32(x)) * INNER + channel));
#if MAX
            best = max(best, v);
#else
            sum += vec4<f32>(v - vec4<i32>(i32(x_zp_at(0u)))) * x_scale_at(0u);
#end
        }
    }
#if MAX == 0
#for e in 4
    let mean$e = divide_f32(sum[$e], f32(max(count, 1u))).x;
    best[$e] = i32(clamp(round(divide_f32(mean$e, y_scale_at(0u)).x + f32(y_zp_at(0u))), LOW, HIGH));
#end
#end
    let low = vec4<u32>(best) & vec4<u32>(0xffu);
    y_store_word(i, low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u));
}
