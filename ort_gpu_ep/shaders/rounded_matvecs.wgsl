// Products of the same COLS vectors with several packed matrices whose vectors may be rounded to bytes: packed_matvecs.wgsl says what comes out.
// Four products are one instruction, and the codes are read as the model stores them: rows of pieces of 32, in 16 bytes or in 32.
// Expects: w, x and gamma? (as vectors), table, zp?, c?, y, of the later matrices w1 table1 zp1 c1 y1 and so on; MATRICES WIDE NORM EPSILON,
// N_0 N_1 N_2 (rows), K PIECES (of a row) STEPS_OF (of a block) COLS PER (rows of a workgroup) BITS (4 or 8) TABLE_ROW TABLE_BLOCK HAS_ZEROS
// (in bytes, codes as wide as the weights'), ZP_ROW ZP_BLOCK, TAKEN (the zero point without them, less what codes are shifted by) FLIP
// (that), SUBGROUPS.
const OUTPUTS: u32 = $((PER * WIDE + NORM) * COLS)u;
#if SUBGROUPS
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
#else
const PARTS: u32 = WORKGROUP_SIZE;
#end
var<workgroup> sums: array<f32, PARTS * OUTPUTS>;
#if WIDE == 2
var<private> beside: f32;
#end

fn codes_of_0(i: u32) -> vec4<u32> { return w_word4(i); }
fn scale_of_0(i: u32) -> f32 { return f32(table_at(i)); }
#if HAS_ZEROS
fn zero_of_0(row: u32, block: u32) -> f32 {
    let bit = (row * ZP_ROW + block * ZP_BLOCK) * BITS;
    return f32(extractBits(zp_word(bit / 32u), bit % 32u, BITS));
}
#end
#if MATRICES > 1
fn codes_of_1(i: u32) -> vec4<u32> { return w1_word4(i); }
fn scale_of_1(i: u32) -> f32 { return f32(table1_at(i)); }
#if HAS_ZEROS
fn zero_of_1(row: u32, block: u32) -> f32 {
    let bit = (row * ZP_ROW + block * ZP_BLOCK) * BITS;
    return f32(extractBits(zp1_word(bit / 32u), bit % 32u, BITS));
}
#end
#end
#if MATRICES > 2
fn codes_of_2(i: u32) -> vec4<u32> { return w2_word4(i); }
fn scale_of_2(i: u32) -> f32 { return f32(table2_at(i)); }
#if HAS_ZEROS
fn zero_of_2(row: u32, block: u32) -> f32 {
    let bit = (row * ZP_ROW + block * ZP_BLOCK) * BITS;
    return f32(extractBits(zp2_word(bit / 32u), bit % 32u, BITS));
}
#end
#end

// Four low bytes together.
fn bytes(whole: vec4<u32>) -> u32 {
    return (whole.x & 0xffu) | ((whole.y & 0xffu) << 8u) | ((whole.z & 0xffu) << 16u) | (whole.w << 24u);
}

fn group_main(whole: u32, lane: u32) {
#for MATRIX in MATRICES // WIDE
#let n = (MATRIX == 0) * N_0 + (MATRIX == 1) * N_1 + (MATRIX == 2) * N_2
#let start = (MATRIX > 0) * ((N_0 + PER - 1) // PER) + (MATRIX > 1) * ((N_1 + PER - 1) // PER)
    if (whole >= $(start)u && whole < $(start + (n + PER - 1) // PER)u) {
    let group = whole - $(start)u;
#include rounded_sums.wgsl
#include matvec_outputs.wgsl
    }
#end
}
