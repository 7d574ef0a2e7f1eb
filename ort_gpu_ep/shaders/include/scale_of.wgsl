// The power of two that brings the magnitude with these bits into [2^14, 2^15), less so many powers, within 2^-120 .. 2^120.
fn scale_of(largest: u32, less: i32) -> f32 {
    let scale = clamp(268 - less - i32(largest >> 23u), 7, 247);       // 14 more than 127 - (exponent - 127)
    return bitcast<f32>(u32(scale) << 23u);
}

// The largest finite magnitude of four numbers, as its bits.
fn finite_bits(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    let kept = select(vec4<u32>(), bits, bits < vec4<u32>(0x7f800000u));
    return max(max(kept.x, kept.y), max(kept.z, kept.w));
}
