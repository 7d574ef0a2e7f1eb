// y[i] = one value everywhere, an invocation per element.
// Expects: LOW and HIGH (the bits of the value). Bound raw. Source: ONNX ConstantOfShape.
fn element(i: u32) -> y_t { return y_of(LOW, HIGH); }
