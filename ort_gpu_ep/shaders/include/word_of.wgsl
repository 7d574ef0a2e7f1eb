// Four signed bytes in a word, the first in the low bits.
fn word_of(bytes: vec4<i32>) -> u32 {
    let low = vec4<u32>(bytes) & vec4<u32>(0xffu);
    return low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
}
