// y[i] = START + i * DELTA; an invocation per element. Expects: START, DELTA. Source: ONNX Range.
fn element(i: u32) -> y_t { return START + f32(i) * DELTA; }
