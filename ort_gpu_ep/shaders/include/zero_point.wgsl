// What is taken off the codes of a block of a row. Expects: zp?; ZERO, ZP_ROW ZP_BLOCK, ZP_BITS (codes in bytes; 0: elements).
fn zero_of(row: u32, block: u32) -> f32 {
    var zero = ZERO;
#if HAS_ZP
    let at = row * ZP_ROW + block * ZP_BLOCK;
#if ZP_BITS
    zero += f32(extractBits(zp_word(at * ZP_BITS / 32u), at * ZP_BITS % 32u, ZP_BITS));
#else
    zero += f32(zp_at(at));
#end
#end
    return zero;
}
