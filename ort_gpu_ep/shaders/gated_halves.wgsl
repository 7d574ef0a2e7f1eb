// y[r, i] = gate sigmoid(ALPHA gate) (up + BETA), where x[r] has gates and ups in turn (INTERLEAVED), or D gates before D ups. With LIMITED they are kept
// within LIMIT before, gates from above alone. One invocation per element.
// Expects: x ([.., 2 D]), y ([.., D]). Source: MoE of ONNX Runtime.
fn element(i: u32) -> y_t {
    let row = i / D * 2u * D;
    let d = i % D;
    var gate = x_at(row + select(d, 2u * d, INTERLEAVED));
    var up = x_at(row + select(d + D, 2u * d + 1u, INTERLEAVED));
    if (LIMITED) {
        gate = min(gate, LIMIT);
        up = clamp(up, -LIMIT, LIMIT);
    }
    return gate * sigmoid_f32(ALPHA * gate) * (up + BETA);
}
