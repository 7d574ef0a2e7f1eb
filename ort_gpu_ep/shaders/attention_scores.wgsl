// y[b, h, i, j] = SCALE q k^T of query i and key j, as attention.wgsl has it at a stage: 0 the product, 1 behind the cap, 2 with the mask (minus
// infinity where a key is not seen, or the lowest number: FINITE). One invocation per element.
// Expects: q, k, mask?, y; STAGE, FINITE, SQ, SK (queries, keys), WIDTH (elements of a head), HEADS, GROUP (heads that share keys), offsets in
// elements <Q, K>_<B, H, S, FIRST>, and CAPPED, CAP, MASK, MASK_<B, H, Q, K>, MASK_KEYS, CAUSAL, BEFORE, WINDOW as attention.wgsl has them.
// Source: ONNX Attention; MultiHeadAttention of ONNX Runtime.
fn unseen() -> f32 { return select(-inf_f32(), -3.4028234663852886e38, FINITE); }

fn element(i: u32) -> y_t {
    let j = i % SK;
    let row = i / SK % SQ;
    let h = i / (SK * SQ) % HEADS;
    let b = i / (SK * SQ * HEADS);
    let from_q = b * Q_B + h * Q_H + row * Q_S + Q_FIRST;
    let from_k = b * K_B + h / GROUP * K_H + j * K_S + K_FIRST;
    var s = 0.0;
    for (var d = 0u; d < WIDTH; d++) { s = fma(q_at(from_q + d) * SCALE, k_at(from_k + d), s); }
#if CAPPED and STAGE > 0
    s = CAP * tanh_f32(s / CAP);
#end
#if STAGE > 1
#if MASK == 1
    s += mask_at(b * MASK_B + h * MASK_H + row * MASK_Q + min(j, MASK_KEYS - 1u) * MASK_K);
#end
#if MASK == 2
    if (!mask_at(b * MASK_B + h * MASK_H + row * MASK_Q + min(j, MASK_KEYS - 1u) * MASK_K)) { return unseen(); }
#end
#if MASK == 3
    let added = mask_at(b * MASK_B + h * MASK_H + row * MASK_Q + min(j, MASK_KEYS - 1u) * MASK_K);
    if (added <= LEAST) { return unseen(); }
    s += added;
#end
#if CAUSAL
    if (j > row + BEFORE) { return unseen(); }
#end
#if WINDOW
    if (j + WINDOW <= row + BEFORE) { return unseen(); }
#end
#end
    return select(s, max(s, unseen()), FINITE);
}
