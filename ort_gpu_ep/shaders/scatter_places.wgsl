// places[n] = base(n) + sum over k < TUPLE of indices[first(n) + k] * STEPk: the row of the data that update n goes to;
// an invocation per update. No place (the largest u32) where an index is out of range.
// Expects: indices (32 or 64 bits), base and first (Strided over the updates), TUPLE, SIZEk and STEPk, WIDE. Bound raw.
const SIZES = array<u32, 8>(SIZE0, SIZE1, SIZE2, SIZE3, SIZE4, SIZE5, SIZE6, SIZE7);
const STEPS = array<u32, 8>(STEP0, STEP1, STEP2, STEP3, STEP4, STEP5, STEP6, STEP7);
const NO_PLACE: u32 = 0xffffffffu;

fn element(n: u32) -> places_t {
    var at = base(n);
    let start = first(n);
    for (var k = 0u; k < TUPLE; k++) {
        let size = i32(SIZES[k]);
        let words = vec2<u32>(indices_at(start + k));
        let index = bitcast<i32>(words.x);
        if (index < -size || index >= size || (WIDE && bitcast<i32>(words.y) != index >> 31u)) {
            out_of_range();
            return NO_PLACE;
        }
        at += u32(select(index, index + size, index < 0)) * STEPS[k];
    }
    return at;
}
