// y = the weight that codes and a codebook stand for, its axes permuted. One invocation per element.
// Expects: w (words of codes of BITS, eight of them in BITS bytes), table (the codebook, TABLE_SIZE values), code_index (of an element of y).
fn element(i: u32) -> y_t {
    let bit = code_index(i) * BITS;
    let first = min(32u - bit % 32u, BITS);
    var code = extractBits(w_word(bit / 32u), bit % 32u, first);
    if (first < BITS) { code |= extractBits(w_word(bit / 32u + 1u), 0u, BITS - first) << first; }
    return table_at(min(code, TABLE_SIZE - 1u));
}
