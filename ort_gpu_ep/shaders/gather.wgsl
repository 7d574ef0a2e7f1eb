// y[i] = x[base(i) + sum over k < TUPLE of indices[first(i) + k] * STEPk], an invocation per element of y: Gather,
// GatherElements and GatherND, which differ in `base` and `first`.
// Expects: x, indices (32 or 64 bits), base and first (Strided over y), TUPLE, SIZEk and STEPk of each indexed dimension of x, WIDE.
// Bound raw. An index below 0 counts from the end; one out of range is noted, and clamped.
const SIZES = array<u32, 8>(SIZE0, SIZE1, SIZE2, SIZE3, SIZE4, SIZE5, SIZE6, SIZE7);
const STEPS = array<u32, 8>(STEP0, STEP1, STEP2, STEP3, STEP4, STEP5, STEP6, STEP7);

fn element(i: u32) -> y_t {
    var at = base(i);
    let start = first(i);
    for (var k = 0u; k < TUPLE; k++) {
        let size = i32(SIZES[k]);
        let words = vec2<u32>(indices_at(start + k));
        let index = bitcast<i32>(words.x);      // what fits a dimension fits the low word
        if (index < -size || index >= size || (WIDE && bitcast<i32>(words.y) != index >> 31u)) { out_of_range(); }
        at += u32(clamp(select(index, index + size, index < 0), 0, size - 1)) * STEPS[k];
    }
    return x_at(at);
}
