// y[i] = A0 - A1 cos(2 pi i / PERIOD) + A2 cos(4 pi i / PERIOD). One invocation per element. Expects: A0, A1, A2, PERIOD.
// Source: ONNX HannWindow, HammingWindow, BlackmanWindow.
fn element(i: u32) -> y_t { return A0 - A1 * sin_of_turn_f32(i, PERIOD, 1u) + A2 * sin_of_turn_f32(2u * i, PERIOD, 1u); }
