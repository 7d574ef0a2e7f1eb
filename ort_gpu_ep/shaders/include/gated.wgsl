// gate sigmoid(ALPHA gate) (up + BETA). With LIMITED both are kept within LIMIT before, the gate from above alone. Source: MoE of ONNX Runtime.
fn gated(gate: f32, up: f32) -> f32 {
    var g = gate;
    var u = up;
    if (LIMITED) {
        g = min(g, LIMIT);
        u = clamp(u, -LIMIT, LIMIT);
    }
    return g * sigmoid_f32(ALPHA * g) * (u + BETA);
}
