// y[i] = START + i * DELTA in 32 bits, sign-extended where y has 64; an invocation per element.
// Expects: START, DELTA. Bound raw. Source: ONNX Range.
fn element(i: u32) -> y_t {
    let v = i32(START) + i32(i) * i32(DELTA);
    return y_of(bitcast<u32>(v), bitcast<u32>(v >> 31u));
}
