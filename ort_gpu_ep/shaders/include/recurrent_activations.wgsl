fn activate(code: u32, alpha: f32, beta: f32, x: f32) -> f32 {
    switch code {
        case 0u: { return sigmoid_f32(x); }
        case 1u: { return tanh_f32(x); }
        case 2u: { return max_f32(x, 0.0); }
        case 3u: { return alpha * x + beta; }
        case 4u: { return select(x, alpha * x, x < 0.0); }
        case 5u: { return select(0.0, x, x > alpha); }
        case 6u: { return alpha * tanh_f32(beta * x); }
        case 7u: { return clamp_f32(alpha * x + beta, 0.0, 1.0); }
        case 8u: { return x / (1.0 + abs(x)); }
        case 9u: { return select(alpha * expm1_f32(x), x, x >= 0.0); }
        default: { return softplus_f32(x); }
    }
}
fn clipped(x: f32) -> f32 {
    if (CLIPPED) { return clamp_f32(x, -CLIP, CLIP); }
    return x;
}
fn act_f(d: u32, x: f32) -> f32 {
    return activate(select(F_CODE_0, F_CODE_1, d == 1u), select(F_ALPHA_0, F_ALPHA_1, d == 1u), select(F_BETA_0, F_BETA_1, d == 1u), clipped(x));
}
fn act_g(d: u32, x: f32) -> f32 {
    return activate(select(G_CODE_0, G_CODE_1, d == 1u), select(G_ALPHA_0, G_ALPHA_1, d == 1u), select(G_BETA_0, G_BETA_1, d == 1u), clipped(x));
}
// Of LSTM's cell state, which ONNX Runtime does not clip.
fn act_a(d: u32, x: f32) -> f32 {
    return activate(select(A_CODE_0, A_CODE_1, d == 1u), select(A_ALPHA_0, A_ALPHA_1, d == 1u), select(A_BETA_0, A_BETA_1, d == 1u), x);
}
