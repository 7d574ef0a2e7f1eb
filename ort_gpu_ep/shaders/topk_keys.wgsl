// keys[line, j] = element j of the line as a 64-bit number (low word, high word) that is smaller for what comes first; an
// invocation per element.
// Expects: x (any numbers, as bits), keys, place (Strided over keys), LARGEST, KIND (0 floating, 1 signed, 2 unsigned),
// WIDE (64 bits), SHIFT (unused bits of a word).
// Source: the order of IEEE 754 numbers is that of their bits, once negative ones are inverted; both zeros are equal.
fn element(i: u32) -> keys_t {
    let words = vec2<u32>(x_at(place(i)));
    var low = select(0u, words.x, WIDE);
    var high = words.y << SHIFT;
    if (KIND == 0u && (high << 1u) == 0u && low == 0u) { high = 0u; }
    let inverted = KIND == 0u && (high >> 31u) == 1u;
    if (inverted) {
        low = ~low;
        high = ~high;
    } else if (KIND != 2u) {
        high ^= 0x80000000u;
    }
    let key = vec2<u32>(low, high);
    return select(key, ~key, LARGEST);
}
