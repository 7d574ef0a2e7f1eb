// Element i of a tensor of blocks along an axis: (code - zero point) * scale. Codes and zero points of BITS lie in words, the first in
// the low bits. Expects: w, scale, zp? (rows of ZP_ROW codes, a whole number of bytes), y, BITS SIGNED ZERO (where zp is left out), BLOCK,
// SIZE and INNER (of the axis, and behind it), BLOCKS (of the axis), LAST (scales along the last axis). Source: com.microsoft
// GatherBlockQuantized.
fn number(code: u32) -> f32 {
    if (SIGNED) { return f32(bitcast<i32>(code << (32u - BITS)) >> (32u - BITS)); }
    return f32(code);
}

fn element(i: u32) -> f32 {
    let along = i / INNER;
    let at = (along / SIZE * BLOCKS + along % SIZE / BLOCK) * INNER + i % INNER;
    var zero = ZERO;
#if HAS_ZP
    let z = (at / LAST * ZP_ROW + at % LAST) * BITS;
    zero = number(extractBits(zp_word(z / 32u), z % 32u, BITS));
#end
    return (number(extractBits(w_word(i * BITS / 32u), i * BITS % 32u, BITS)) - zero) * scale_at(at);
}
