// y[k, n] = weight[n, k], as unpack_product.wgsl writes it, of codes in the order of packed_matvec.wgsl: a word holds those of PER rows at one k.
// A workgroup of 64 brings 64 rows of TILE codes through its memory, so that neighbours read neighbouring words and write neighbouring rows.
// Expects: w (as vectors; WORDS words for each PER rows), y, TILES_N, and of the weights what packed_matvec.wgsl says: scales of blocks as
// `scales`, or as `table`.
const PER: u32 = 32u / BITS;
const TILE: u32 = 4u * PER;
var<workgroup> words: array<u32, 64u / PER * (TILE + 1u)>;

#include zero_point.wgsl

fn group_main(group: u32, lane: u32) {
    let n0 = group % TILES_N * 64u;
    let k0 = group / TILES_N * TILE;
    let k = k0 + lane % PER * 4u;
    var four = vec4<u32>();
    if (n0 + lane / PER * PER < N && k < WORDS) { four = w_word4(((n0 / PER + lane / PER) * WORDS + k) / 4u); }
    let to = lane / PER * (TILE + 1u) + lane % PER * 4u;
#for i in 4
    words[to + $(i)u] = four[$i];
#end
    workgroupBarrier();
    let row = n0 + lane;
    if (row >= N) { return; }
    let shift = lane % PER * BITS;
    var scale = 0.0;
    var zero = 0.0;
    for (var i = 0u; i < min(TILE, max(K, k0) - k0); i++) {
#if BLOCK
        let block = (k0 + i) / BLOCK;
        let begins = (k0 + i) % BLOCK == 0u;
#else
        let block = 0u;
        let begins = false;
#end
        if (i == 0u || begins) {
#if SCALES
            scale = scales_at((row / PER * BLOCKS + block) * PER + row % PER);
#else
            scale = table_at(row * TABLE_ROW + block * TABLE_BLOCK);
#end
#if HAS_ZEROS
            zero = f32(extractBits(zeros_word(row / PER * BLOCKS + block), shift, BITS));
#else
            zero = zero_of(row, block);
#end
        }
        y_set((k0 + i) * N + row, (f32(extractBits(words[lane / PER * (TILE + 1u) + i], shift, BITS)) - zero) * scale);
    }
}
