// Rows of x as signed bytes, with a scale for BLOCK elements of a row, as ONNX Runtime's CPU rounds them: the largest becomes 127, halves
// go to even. codes[word, row]: four bytes along k, with PAIRED eight in two words: the even ones, the odd ones. numbers[2 * block, row]:
// the scale's bits, and behind it the sum of the bytes; with infinity or NaN among its elements the scale is that.
// Expects: x (vectors where X4), codes, numbers; ROWS PADDED (rows, and those that are stored) K BLOCK BLOCKS PAIRED X4.
fn eight_of_x(row: u32, k: u32) -> array<vec4<f32>, 2> {
#if X4
    let at = (row * K + k) / 4u;
    return array<vec4<f32>, 2>(x_at4(at), x_at4(at + 1u));
#else
    var found = array<vec4<f32>, 2>();
#for e in 8
    if (k + $(e)u < K) { found[$(e // 4)u][$(e % 4)] = x_at(row * K + k + $(e)u); }
#end
    return found;
#end
}

#include word_of.wgsl

fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    let row = i % PADDED;
    let block = i / PADDED;
    if (block >= BLOCKS) { return; }
    let first = block * BLOCK;
    let end = select(first, min(first + BLOCK, K), row < ROWS);
    var most = vec4<u32>();     // a float's bits without its sign are in its order, and NaN's are above infinity's
    for (var k = first; k < end; k += 8u) {
        let x = eight_of_x(row, k);
        most = max(most, max(bitcast<vec4<u32>>(abs(x[0])), bitcast<vec4<u32>>(abs(x[1]))));
    }
    let largest = bitcast<f32>(max(max(most.x, most.y), max(most.z, most.w)));
    let up = select(divide_f32(127.0, largest).x, 0.0, largest < 1e-35);     // 127 / 1e-37 is no float; halves are common among float16 numbers
    var sum = 0;
    for (var k = first; k < first + BLOCK; k += 8u) {
        var low = vec4<i32>();
        var high = vec4<i32>();
        if (k < end) {
            let x = eight_of_x(row, k);
            low = vec4<i32>(round(x[0] * up));
            high = vec4<i32>(round(x[1] * up));
        }
#if PAIRED
        let words = vec2<u32>(word_of(vec4<i32>(low.xz, high.xz)), word_of(vec4<i32>(low.yw, high.yw)));
#else
        let words = vec2<u32>(word_of(low), word_of(high));
#end
        codes_set(k / 4u * PADDED + row, words.x);
        codes_set((k / 4u + 1u) * PADDED + row, words.y);
        let both = low + high;
        sum += both.x + both.y + both.z + both.w;
    }
    numbers_set(2u * block * PADDED + row, bitcast<u32>(divide_f32(largest, 127.0).x));
    numbers_set((2u * block + 1u) * PADDED + row, bitcast<u32>(sum));
}
