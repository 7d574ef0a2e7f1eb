// Word i of y: some bits of the codes of a matrix, the first code in the low bits. A word holds the codes of a row at neighbouring k, row
// after row, each row in whole words; or, INTERLEAVED, those of neighbouring rows at one k.
// Expects: w (the words of a tensor of codes), y (uint32), FROM (bits of a code, anywhere across words), SHIFT and BITS (which of
// them are taken), FLIP (added to a code modulo 2^FROM: makes signed codes unsigned), ROW and STEP (distance of rows, and of codes
// in a row, in codes), ROWS, K (codes of a row), WORDS (of a row, or of the rows that share words). One invocation per word.
const PER: u32 = 32u / BITS;

#default SWAPPED = 0
fn code(i: u32) -> u32 {
#if SWAPPED
// SWAPPED (left out: no): the first of two codes is in the high bits.
    let bit = (i ^ 1u) * FROM;
#else
    let bit = i * FROM;
#end
    let first = min(32u - bit % 32u, FROM);
    var found = extractBits(w_word(bit / 32u), bit % 32u, first);
    if (first < FROM) { found |= extractBits(w_word(bit / 32u + 1u), 0u, FROM - first) << first; }
    return ((found ^ FLIP) >> SHIFT) & ((1u << BITS) - 1u);
}

fn element(i: u32) -> y_t {
    var word = 0u;
#if INTERLEAVED
    let row = i / WORDS * PER;
    let k = i % WORDS;
    if (k >= K) { return 0u; }
    for (var j = 0u; j < min(PER, max(ROWS, row) - row); j++) { word |= code((row + j) * ROW + k * STEP) << (j * BITS); }
#else
    let row = i / WORDS;
    let k = i % WORDS * PER;
    for (var j = 0u; j < min(PER, max(K, k) - k); j++) { word |= code(row * ROW + (k + j) * STEP) << (j * BITS); }
#end
    return word;
}
