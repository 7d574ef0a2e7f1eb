// Word i of y: some bits of the codes of a matrix, row after row, each row in whole words, the first code in the low bits.
// Expects: w (the words of a tensor of codes), y (uint32), FROM (bits of a code, anywhere across words), SHIFT and BITS (which of
// them are taken), FLIP (added to a code modulo 2^FROM: makes signed codes unsigned), ROW and STEP (distance of rows, and of codes
// in a row, in codes), K (codes of a row), WORDS (of a row of y). One invocation per word.
const PER: u32 = 32u / BITS;

fn code(i: u32) -> u32 {
    let bit = i * FROM;
    let first = min(32u - bit % 32u, FROM);
    var found = extractBits(w_word(bit / 32u), bit % 32u, first);
    if (first < FROM) { found |= extractBits(w_word(bit / 32u + 1u), 0u, FROM - first) << first; }
    return ((found ^ FLIP) >> SHIFT) & ((1u << BITS) - 1u);
}

fn element(i: u32) -> y_t {
    let row = i / WORDS;
    let k = i % WORDS * PER;
    var word = 0u;
    for (var j = 0u; j < min(PER, max(K, k) - k); j++) { word |= code(row * ROW + (k + j) * STEP) << (j * BITS); }
    return word;
}
