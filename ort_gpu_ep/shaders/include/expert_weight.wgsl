// Weights of experts as MoE and QMoE store them: element k of row n of expert e is weight(e, n, k), where they are read one by one (PER = 1).
// Expects: w ([EXPERTS, N, K], or codes of BITS), scales? (BLOCKS of a row, each for BLOCK elements), zeros? (codes of ZERO_ROW bytes a row, of an expert
// where BLOCKS is 0: then there is a scale for a row), N K PER.

fn scale_of(e: u32, n: u32, k: u32) -> f32 {
#if BITS == 0
    return 1.0;
#else
#if BLOCKS
    return scales_at((e * N + n) * BLOCKS + k / BLOCK);
#else
    return scales_at(e * N + n);
#end
#end
}

// The code that stands for 0.
fn zero_of(e: u32, n: u32, k: u32) -> f32 {
#if BITS == 0
    return 0.0;
#else
#if HAS_ZEROS
#if BLOCKS
    let block = k / BLOCK;
    let code = zeros_at((e * N + n) * ZERO_ROW + block / (8u / BITS)) >> (block % (8u / BITS) * BITS);
#else
    let code = zeros_at(e * ZERO_ROW + n / (8u / BITS)) >> (n % (8u / BITS) * BITS);
#end
    return f32(code & ((1u << BITS) - 1u));
#else
    return f32(1u << (BITS - 1u));
#end
#end
}

#if BITS
// Four codes from the low bits of a word on.
fn four_codes(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(word, word >> BITS, word >> (2u * BITS), word >> (3u * BITS)) & vec4<u32>((1u << BITS) - 1u));
}

#end
#if PER == 1
fn weight(e: u32, n: u32, k: u32) -> f32 {
    let at = (e * N + n) * K + k;
#if BITS == 0
    return w_at(at);
#else
    let code = (w_at(at / (8u / BITS)) >> (at % (8u / BITS) * BITS)) & ((1u << BITS) - 1u);
    return (f32(code) - zero_of(e, n, k)) * scale_of(e, n, k);
#end
}
#end
