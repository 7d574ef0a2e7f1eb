#if CODES
// Caches of keys and values that hold codes of CODES bits: an element is its code times its scale. Codes of 8 bits are signed, four to a word; those of
// 4 bits have 8 added, eight to a word, and begin with the lower half of a byte.
// Expects: k_scale and v_scale (of keys and of values), K_CHANNELS, V_CHANNELS (1: a scale for each head and element, [heads, HEAD]; 0: one), HEAD.
// Source: GroupQueryAttention of ONNX Runtime (com.microsoft), kv_cache_bit_width.
fn scale_of(part: u32, head: u32, d: u32) -> f32 {
    let at = head * HEAD + d;
    if (part == 1u) { return k_scale_at(at * K_CHANNELS); }
    return v_scale_at(at * V_CHANNELS);
}

fn code_of(v: f32, scale: f32) -> f32 {     // halves to even; a scale of 0 stands for 1
#if CODES == 8
    return clamp(round(v * select(divide_f32(1.0, scale).x, 1.0, scale == 0.0)), -128.0, 127.0);
#else
    return clamp(round(v * select(divide_f32(1.0, scale).x, 1.0, scale == 0.0)), -8.0, 7.0);
#end
}

fn scales_of_four(part: u32, head: u32, d4: u32) -> vec4<f32> {
    let d = 4u * d4;
    return vec4<f32>(scale_of(part, head, d), scale_of(part, head, d + 1u), scale_of(part, head, d + 2u), scale_of(part, head, d + 3u));
}

fn codes_of_four(part: u32, head: u32, d4: u32, v: vec4<f32>) -> vec4<f32> {
    let scales = scales_of_four(part, head, d4);
    return vec4<f32>(code_of(v.x, scales.x), code_of(v.y, scales.y), code_of(v.z, scales.z), code_of(v.w, scales.w));
}

fn bits_of(codes: vec4<f32>) -> u32 {       // of four codes
#if CODES == 8
    let bits = vec4<u32>(vec4<i32>(codes)) & vec4<u32>(255u);
#else
    let bits = vec4<u32>(codes + 8.0);
#end
    return bits.x | (bits.y << $(CODES)u) | (bits.z << $(2 * CODES)u) | (bits.w << $(3 * CODES)u);
}

// Of the word that holds this four of the cache. 2^23 as a float32 counts in its lowest bits, and conversions of whole numbers are slow on many GPUs.
fn codes_in(word: u32, four: u32) -> vec4<f32> {
#if CODES == 8
    let bits = word ^ 0x80808080u;      // 128 added
    let codes = vec4<u32>(bits, bits >> 8u, bits >> 16u, bits >> 24u) & vec4<u32>(255u);
    return bitcast<vec4<f32>>(codes | vec4<u32>(0x4b000000u)) - (8388608.0 + 128.0);
#else
    let bits = word >> (four % 2u * 16u);
    let codes = vec4<u32>(bits, bits >> 4u, bits >> 8u, bits >> 12u) & vec4<u32>(15u);
    return bitcast<vec4<f32>>(codes | vec4<u32>(0x4b000000u)) - (8388608.0 + 8.0);
#end
}
#end
