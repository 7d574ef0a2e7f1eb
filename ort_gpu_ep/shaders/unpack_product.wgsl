// y[k, n] = weight[n, k]: packed rows as product.wgsl reads dense weights. An invocation unpacks a word of a row; neighbours have
// neighbouring rows, so that they write neighbouring elements.
// Expects: w high? table zp? and what describes them as packed_matvec.wgsl has it (ENTRIES and WHOLE are not used), y; N K.
const PER: u32 = 32u / BITS;

#include zero_point.wgsl

#default LEVELS = 0
#if LEVELS
// LEVELS as packed_matvec.wgsl has it.
#include levels.wgsl

#end
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    let row = i % N;
    let index = i / N;
    if (index >= WORDS) { return; }
    let word = w_word(row * WORDS + index) ^ FLIP;
#if LEVELS or not CODEBOOK
#if BLOCK
    let block = min(index * PER, K - 1u) / BLOCK;
#else
    let block = 0u;
#end
    let scale = table_at(row * TABLE_ROW + block * TABLE_BLOCK);
    let zero = zero_of(row, block);
#end
    for (var j = 0u; j < min(PER, max(K, index * PER) - index * PER); j++) {
        var code = extractBits(word, j * BITS, BITS);
#if HIGH
        let bit = ((row * WORDS + index) * PER + j) * HIGH;
        code |= extractBits(high_word(bit / 32u), bit % 32u, HIGH) << BITS;
#end
#if LEVELS
        y_set((index * PER + j) * N + row, level(code) * scale);
#end
#if CODEBOOK and not LEVELS
        y_set((index * PER + j) * N + row, table_at(min(code, TABLE_SIZE - 1u)));
#end
#if not CODEBOOK
        y_set((index * PER + j) * N + row, (f32(code) - zero) * scale);
#end
    }
}
