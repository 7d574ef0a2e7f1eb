// y[c, n] = ALPHA * sum over k of weight[n, k] * x[c, k] + BETA * bias for COLS vectors c, the weights read as they are packed.
// A word holds the codes of PER rows at one k, and four words those at four: an invocation reads x once for all of them. WORKGROUP_SIZE
// invocations share K, and neighbours read neighbouring words.
// weight[n, k] = (code - zero) * scale, a scale (and zero) for BLOCK codes of a row, or with BLOCK 0 for the row; or CODEBOOK: table[code].
// Expects: w (as vectors; WORDS words for each PER rows, interleaved by repack.wgsl; codes of BITS, the first row's in the low bits), x,
// table (scales of rows, or a codebook of TABLE_SIZE <= ENTRIES = 2^bits values), zp?, or for blocks scales (as vectors, by
// interleave_scales.wgsl) and zeros? (words of the zero points of PER rows), c?, y; N K COLS PER, COPY_BITS (2^COPY_BITS copies of the
// codebook), BLOCK BLOCKS, HAS_ZEROS, HALVES (unpack2x16float keeps what is below 2^-14: two codes at a time are read as such numbers),
// TABLE_ROW TABLE_BLOCK (strides of the scales), ZP_BITS (codes in bytes; 0: elements), ZP_ROW ZP_BLOCK, ZERO (added to each zero point),
// WHOLE (all zero points are whole numbers), X4, X_COL X_K (strides), Y_COL Y_ROW, c_index, ALPHA BETA, SUBGROUPS.
const WORDS4: u32 = WORDS / 4u;
const OUTPUTS: u32 = PER * COLS;
#if SUBGROUPS
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
#else
const PARTS: u32 = WORKGROUP_SIZE;
#end
var<workgroup> sums: array<f32, PARTS * OUTPUTS>;
#if CODEBOOK
const BOOK: u32 = ENTRIES << COPY_BITS;
var<workgroup> book: array<f32, BOOK>;   // a copy for each few invocations: hardly two meet in a bank
#end

fn words_of_0(i: u32) -> vec4<u32> { return w_word4(i); }

#include packed_codes.wgsl

#default LEVELS = 0
#if LEVELS
// LEVELS (left out: no): a CODEBOOK of 16 numbers that the shader knows, times a scale, as of other codes.
#include levels.wgsl

#end
#default GROUPED = 0
fn group_main(group: u32, lane: u32) {
#if GROUPED
    // GROUPED (left out: no): COLUMN_GROUPS neighbouring workgroups have COLS vectors each of the same rows, which are read from memory once. COUNT: vectors.
    first_column = group % COLUMN_GROUPS * COLS;
    let its_rows = group / COLUMN_GROUPS;
    {
    let group = its_rows;
#end
#if CODEBOOK
#if LEVELS
    for (var i = lane; i < BOOK; i += WORKGROUP_SIZE) { book[i] = level(i >> COPY_BITS); }
#else
    for (var i = lane; i < BOOK; i += WORKGROUP_SIZE) { book[i] = table_at(min(i >> COPY_BITS, TABLE_SIZE - 1u)); }
#end
    let copy = lane & ((1u << COPY_BITS) - 1u);
    workgroupBarrier();
#end
#let WIDE = 1
#let MATRIX = 0
#let NORM = 0
#include packed_sums.wgsl
    for (var i = lane; i < OUTPUTS; i += WORKGROUP_SIZE) {
#if GROUPED
        let row = select(N, group * PER + i / COLS, first_column + i % COLS < COUNT);
#else
        let row = group * PER + i / COLS;
#end
        if (row < N) {
            var v = 0.0;
            for (var part = 0u; part < parts; part++) { v += sums[part * OUTPUTS + i]; }
            v *= ALPHA;
#if BLOCK == 0 and (LEVELS or not CODEBOOK)
            v *= table_at(row * TABLE_ROW);
#end
#if GROUPED
            let at = (first_column + i % COLS) * Y_COL + row * Y_ROW;
#else
            let at = i % COLS * Y_COL + row * Y_ROW;
#end
            if (HAS_C) { v += BETA * c_at(c_index(at)); }
            y_set(at, v);
        }
    }
#if GROUPED
    }
#end
}
