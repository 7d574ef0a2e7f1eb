// y[b] = tokens of a cache with those of this step, less one, of which `past` tells how many came before; the same for each batch.
// One invocation per element.
// Expects: past (one element); SEQUENCE (tokens of this step), ROWS (of the cache), KEYS (of the mask, which are all there are; 0: no mask).
// Source: past_sequence_length of MultiHeadAttention of ONNX Runtime (com.microsoft).
fn element(i: u32) -> y_t {
    let before = past_at(0u);
    if (before < 0 || before >= i32(ROWS) || before > i32(ROWS) - i32(SEQUENCE)) { out_of_range(); }
#if MASKED
    if (before != i32(KEYS) - i32(SEQUENCE)) { out_of_range(); }
#end
    return clamp(before, 0, i32(ROWS) - i32(min(SEQUENCE, ROWS))) + i32(SEQUENCE) - 1;
}
