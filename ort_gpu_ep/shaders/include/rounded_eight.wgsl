// Eight elements of a unit of 32 as signed bytes, by the unit's largest (quantize_blocks.wgsl says how). Four neighbours of a subgroup, which have a unit, call it.
struct Eight {
    words: vec2<u32>,   // the even elements, the odd ones
    scale: f32,         // of the unit
    sum: i32,           // of the unit's bytes
}

#include whole_numbers.wgsl
#include word_of.wgsl

fn rounded_eight(low: vec4<f32>, high: vec4<f32>) -> Eight {
    let most = max(bitcast<vec4<u32>>(abs(low)), bitcast<vec4<u32>>(abs(high)));    // in the order of the floats, NaN above infinity
    var top = max(max(most.x, most.y), max(most.z, most.w));
    top = max(top, subgroupShuffleXor(top, 1u));
    top = max(top, subgroupShuffleXor(top, 2u));
    let largest = bitcast<f32>(top);
    let up = select(127.0 / largest, 0.0, largest < 1e-35);     // 127 / 1e-37 is no float
    let a = nearest(low * up);
    let b = nearest(high * up);
    let both = a + b;
    var sum = both.x + both.y + both.z + both.w;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    return Eight(vec2<u32>(word_of(vec4<i32>(a.xz, b.xz)), word_of(vec4<i32>(a.yw, b.yw))), largest / 127.0, sum);
}
