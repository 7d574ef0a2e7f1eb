// y[i] = ALPHA * sum over s of part[s, i] + BETA * c: the second half of a product whose K was split.
// Expects: part [SPLIT, SIZE], c?, y [SIZE]; c_index (over y); ALPHA BETA.
fn element(i: u32) -> y_t {
    var even = 0.0;
    var odd = 0.0;
    for (var s = 0u; s < SPLIT; s += 2u) {
        even += part_at(s * SIZE + i);
        if (s + 1u < SPLIT) { odd += part_at((s + 1u) * SIZE + i); }
    }
    var v = ALPHA * (even + odd);
    if (HAS_C) { v += BETA * c_at(c_index(i)); }
    return v;
}
