// Element i of a tensor of codes, put together from the rows that repack.wgsl made of it: its inverse, for weights that stand nowhere else.
// Expects: rows (words; codes of BITS), upper? (HIGH more bits of each code), y (elements of ELEMENT bits), FROM (bits of a code in y), FLIP,
// ROW, STEP, ROWS, K, WORDS, INTERLEAVED and SWAPPED as repack.wgsl has them (ROW or STEP is 1). What is between rows becomes 0.
const PER: u32 = 32u / BITS;
#default SWAPPED = 0

fn code(at: u32) -> u32 {
    let row = select(at / ROW, at % STEP, ROW == 1u);
    let k = select(at % ROW / STEP, at / STEP, ROW == 1u);
    if (row >= ROWS || k >= K) { return 0u; }
#if INTERLEAVED
    var found = extractBits(rows_at(row / PER * WORDS + k), row % PER * BITS, BITS);
#else
    var found = extractBits(rows_at(row * WORDS + k / PER), k % PER * BITS, BITS);
#end
#if HIGH
    let bit = (row * WORDS * PER + k) * HIGH;
    found |= extractBits(upper_at(bit / 32u), bit % 32u, HIGH) << BITS;
#end
    return found ^ FLIP;
}

fn element(i: u32) -> y_t {
    var found = 0u;
    let end = (i + 1u) * ELEMENT;
    for (var bit = i * ELEMENT; bit < end;) {
        let count = min(FROM - bit % FROM, end - bit);
#if SWAPPED
        found |= extractBits(code(bit / FROM ^ 1u), bit % FROM, count) << (bit - i * ELEMENT);
#else
        found |= extractBits(code(bit / FROM), bit % FROM, count) << (bit - i * ELEMENT);
#end
        bit += count;
    }
    return y_t(found);
}
