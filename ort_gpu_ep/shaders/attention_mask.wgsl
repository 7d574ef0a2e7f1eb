// y[b, h, q, j]: what is added to the score of query q and key j: a bias, FILTER where a key is padding, minus infinity where q may not see it.
// One invocation per element.
// Expects: y ([.., HEADS, QUERIES, KEYS]); BIAS (0 none, 1 added, 2 bool) with bias at BIAS_<B, H, Q, K>, of BIAS_KEYS keys, behind which
// none is seen; PADDING (0 none; `padding` is 1: 0 where a key is padding, at PADDING_<B, Q>, from row PADDING_ROW on; 2: where the keys of a batch
// end, 3: and behind those, for BATCHES of them, where they begin; 4: `lengths` of 64 bits: keys of a batch that are there); BEFORE (keys before
// the first query's own; of kind 4 the batch tells), CAUSAL (nothing behind the own), LEFT and RIGHT (how many keys around the own, plus one; 0: any).
// Source: ONNX Attention; Attention and MultiHeadAttention of ONNX Runtime.
fn element(i: u32) -> y_t {
    let j = i % KEYS;
    let q = i / KEYS % QUERIES;
    let h = i / (KEYS * QUERIES) % HEADS;
    let b = i / (KEYS * QUERIES * HEADS);
    var v = 0.0;
    var before = i32(BEFORE);
#if BIAS
    if (j >= BIAS_KEYS) { return -inf_f32(); }
#if BIAS == 2
    if (!bias_at(b * BIAS_B + h * BIAS_H + q * BIAS_Q + j * BIAS_K)) { return -inf_f32(); }
#else
    v = bias_at(b * BIAS_B + h * BIAS_H + q * BIAS_Q + j * BIAS_K);
#end
#end
#if PADDING == 1
    if (padding_at(b * PADDING_B + (q + PADDING_ROW) * PADDING_Q + j) == 0) { v += FILTER; }
#end
#if PADDING == 2
    if (i32(j) >= padding_at(b)) { v += FILTER; }
#end
#if PADDING == 3
    if (i32(j) >= padding_at(b) || i32(j) < padding_at(BATCHES + b)) { v += FILTER; }
#end
#if PADDING == 4
    let told = lengths_pair(b);
    if (told.y != 0u || told.x > KEYS) { wrong_length(); }
    let valid = select(i32(min(told.x, 0x7fffffffu)), 0, bitcast<i32>(told.y) < 0);
    if (i32(j) >= valid) { return -inf_f32(); }
    before = valid - i32(QUERIES);
#end
    let position = i32(q) + before;
#if CAUSAL == 1
    if (i32(j) > position) { return -inf_f32(); }
#end
#if CAUSAL == 2
    if (i32(j) > position && q + 1u < QUERIES) { return -inf_f32(); }       // the last query sees what is behind its own, too
#end
#if LEFT
    if (i32(j) + i32(LEFT) <= position) { return -inf_f32(); }
#end
#if RIGHT
    if (i32(j) >= position + i32(RIGHT)) { return -inf_f32(); }
#end
    return v;
}
