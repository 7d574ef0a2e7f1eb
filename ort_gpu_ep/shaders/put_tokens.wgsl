// Writes the tokens of this step: QUERIES alone, as [BATCH, HEADS, SEQUENCE, HEAD]; KEYS and VALUES into caches of [BATCH, KEY_HEADS, ROWS, HEAD],
// behind those of the steps before; all else stays as it is there. A batch whose length is out of range writes nothing into its cache. One
// invocation per element of the tokens, COUNT in all: Q_COUNT of the queries, then K_COUNT of the keys, then those of the values.
// Expects: x (tokens of all that is written, or the first of them alone), k? v? (where those lie apart), k_weight? (of keys beside queries),
// lengths, cosines? sines? positions? weight? and the constants that append_tokens.wgsl describes; of each part the first letter with _BATCH _TOKEN
// _FIRST, as X_BATCH X_TOKEN X_FIRST there; queries, keys, values.
// Source: GroupQueryAttention of ONNX Runtime (com.microsoft), past and present in one buffer.
#default CODES = 0
#if CODES
// CODES: keys and values hold codes of so many bits (include/cache_codes.wgsl); an invocation, and K_COUNT, are of a word then.
#end
#include tokens_before.wgsl
#include cache_codes.wgsl

fn token_at(part: u32, i: u32) -> f32 {
#if HAS_K
    if (part == 1u) { return k_at(i); }
#end
#if HAS_V
    if (part == 2u) { return v_at(i); }
#end
    return x_at(i);
}

#if NORM
fn norm_weight(part: u32, d: u32) -> f32 {
#if HAS_K_WEIGHT
    if (part == 1u) { return k_weight_at(d); }
#end
    return weight_at(d);
}
#end

fn origin(part: u32, b: u32, token: u32, head: u32) -> u32 {
    if (part == 0u) { return b * Q_BATCH + token * Q_TOKEN + Q_FIRST + head * HEAD; }
    if (part == 1u) { return b * K_BATCH + token * K_TOKEN + K_FIRST + head * HEAD; }
    return b * V_BATCH + token * V_TOKEN + V_FIRST + head * HEAD;
}

#include token_element.wgsl

fn group_main(group: u32, lane: u32) {
    var i = group * WORKGROUP_SIZE + lane;
    if (i >= COUNT) { return; }
#if QUERIES
    if (i < Q_COUNT) {
        let head = i / HEAD % HEADS;
        let token = i / (HEAD * HEADS) % SEQUENCE;
        let b = i / (HEAD * HEADS * SEQUENCE);
        queries_set(((b * HEADS + head) * SEQUENCE + token) * HEAD + i % HEAD, token_element(0u, b, token, head, i % HEAD, tokens_before(b)));
        return;
    }
    i -= Q_COUNT;
#end
#if KEYS
    let part = select(1u, 2u, i >= K_COUNT);
    i -= select(0u, K_COUNT, part == 2u);
#else
    let part = 2u;
#end
#if CODES
    let d = i % (HEAD / $(32 // CODES)u) * $(32 // CODES)u;
    i = i / (HEAD / $(32 // CODES)u) * HEAD;
#else
    let d = i % HEAD;
#end
    let head = i / HEAD % KEY_HEADS;
    let token = i / (HEAD * KEY_HEADS) % SEQUENCE;
    let b = i / (HEAD * KEY_HEADS * SEQUENCE);
    let before = tokens_before(b);
    if (!lengths_fit(b)) { return; }
    let to = ((b * KEY_HEADS + head) * ROWS + before + token) * HEAD + d;
#if CODES
    var word = 0u;
#for n in 8 // CODES
    let codes$n = vec4<f32>(
#for e in 4
        code_of(token_element(part, b, token, head, d + $(4 * n + e)u, before), scale_of(part, head, d + $(4 * n + e)u)),
#end
    );
    word |= bits_of(codes$n) << $(16 * n)u;
#end
#if KEYS
    if (part == 1u) { keys_store_word(to / $(32 // CODES)u, word); }
#end
#if VALUES
    if (part == 2u) { values_store_word(to / $(32 // CODES)u, word); }
#end
#else
    let v = token_element(part, b, token, head, d, before);
#if KEYS
    if (part == 1u) { keys_set(to, v); }
#end
#if VALUES
    if (part == 2u) { values_set(to, v); }
#end
#end
}
