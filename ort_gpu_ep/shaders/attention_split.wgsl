// Attention of one query for each head, over KEYS keys a workgroup, for SHARE heads that read the same keys: for each head and part of the
// keys the largest score, the sum of the powers relative to it, and that of the values times them, not yet divided. attention_join.wgsl
// brings the parts together. In a first step LANES invocations have PARTS for a key, in a second one D4 for a row of values.
// Grid: parts of the keys, blocks of SHARE heads, batches.
// Expects: q, k, v (vectors of four elements), mask?, lengths?, sums (vectors: [batch, head, part, D4]), tops ([batch, head, part, 2]);
// D4 (vectors of a head), LOADS (rows of values that an invocation reads), ROUNDS (powers that it has), HEADS SPLITS (parts of the keys) SQ (1), SCALE, and of
// attention.wgsl its strides and offsets, BEFORE, GROUP, SK, MASK, CAUSAL, CAPPED, LENGTHS, WINDOW.
// With APPEND q and the newest key are tokens, turned here, and key and value are stored behind those of the steps before, by one of the workgroups that have
// their place. Then keys and values, which are written, stand for k and v, and x for q, perhaps x_k and x_v beside it, with Q_ROW Q_AT and so on (of a
// batch, and from which element on), and what include/token_element.wgsl expects.
// Source: Dao et al., Flash-Decoding for long-context inference, 2023.
#default CODES = 0
#if CODES
// CODES: as attention.wgsl has it; attention_join.wgsl applies the scales of values, so that this binds no buffer for them, unless it stores one.
#end
#include attention_scores.wgsl
#include cache_codes.wgsl
const LANES: u32 = WORKGROUP_SIZE;
const TEAM: u32 = LANES / SHARE;        // invocations that have a head's powers
const ROWS: u32 = LANES / D4;           // of values that are read at a time

#if APPEND
var<workgroup> queries: array<vec4<f32>, (SHARE + 1u) * D4>;    // and the newest key
#else
var<workgroup> queries: array<vec4<f32>, SHARE * D4>;
#end
var<workgroup> scores: array<f32, SHARE * KEYS * PARTS>;
var<workgroup> found: array<f32, LANES>;
var<workgroup> joined: array<vec4<f32>, SHARE * ROWS * D4>;

#if CODES
#if APPEND
fn k_at4(i: u32) -> vec4<f32> { return codes_in(keys_word(i / $(8 // CODES)u), i); }
fn v_at4(i: u32) -> vec4<f32> { return codes_in(values_word(i / $(8 // CODES)u), i); }
#else
fn k_at4(i: u32) -> vec4<f32> { return codes_in(k_word(i / $(8 // CODES)u), i); }
fn v_at4(i: u32) -> vec4<f32> { return codes_in(v_word(i / $(8 // CODES)u), i); }
#end

#end
#if APPEND
#if not CODES
fn k_at4(i: u32) -> vec4<f32> { return keys_at4(i); }
fn v_at4(i: u32) -> vec4<f32> { return values_at4(i); }

#end
fn token_at(part: u32, i: u32) -> f32 {
#if HAS_X_K
    if (part == 1u) { return x_k_at(i); }
#end
#if HAS_X_V
    if (part == 2u) { return x_v_at(i); }
#end
    return x_at(i);
}

fn origin(part: u32, b: u32, token: u32, head: u32) -> u32 {
    if (part == 0u) { return b * Q_ROW + Q_AT + head * HEAD; }
    if (part == 1u) { return b * K_ROW + K_AT + head * HEAD; }
    return b * V_ROW + V_AT + head * HEAD;
}

#include token_element.wgsl

fn token4(part: u32, b: u32, head: u32, d4: u32, before: u32) -> vec4<f32> {
    return vec4<f32>(
        token_element(part, b, 0u, head, 4u * d4, before), token_element(part, b, 0u, head, 4u * d4 + 1u, before),
        token_element(part, b, 0u, head, 4u * d4 + 2u, before), token_element(part, b, 0u, head, 4u * d4 + 3u, before));
}
#if CODES

fn newest_four(part: u32, b: u32, head: u32, d4: u32, before: u32) -> vec4<f32> {
    return codes_of_four(part, head, d4, token4(part, b, head, d4, before));
}

fn newest_word(part: u32, b: u32, head: u32, word: u32, before: u32) -> u32 {
    var bits = 0u;
#for n in 8 // CODES
    bits |= bits_of(newest_four(part, b, head, word * $(8 // CODES)u + $(n)u, before)) << $(16 * n)u;
#end
    return bits;
}
#end
#end

fn grid_main(group: vec3<u32>, lane: u32) {
    let b = group.z;
    let first_head = group.y * SHARE;
    let first = group.x * KEYS;
#if LENGTHS
    let before = tokens_before(b);
#else
    let before = BEFORE;
#end
#if LENGTHS and CAUSAL
    if (first > before) {       // a part that no token has reached: the same for the whole workgroup
        if (lane < SHARE) {
            let at = ((b * HEADS + first_head + lane) * SPLITS + group.x) * 2u;
            tops_set(at, LOWEST);
            tops_set(at + 1u, 0.0);
        }
        return;
    }
#end
    let key = first + lane / PARTS;
    let part = lane % PARTS;
    let k_from = b * K_B + first_head / GROUP * K_H + min(key, SK - 1u) * K_S + K_FIRST + part;
    let v_from = b * V_B + first_head / GROUP * V_H + V_FIRST + lane % D4;
    let is_seen = sees(b, first_head, 0u, key, before);
#for d in D4 // PARTS
    var k$d = vec4<f32>();
#end
#if APPEND
    let is_stored = is_seen && key != before;
#else
    let is_stored = is_seen;
#end
    if (is_stored) {
#for d in D4 // PARTS
        k$d = k_at4(k_from + $(d * PARTS)u);
#end
    }
#for n in LOADS
    var v$n = vec4<f32>();
    if (lane < ROWS * D4 && sees(b, first_head, 0u, first + lane / D4 + $(n)u * ROWS, before)) {
#if APPEND
        if (first + lane / D4 + $(n)u * ROWS == before) {
#if CODES
            v$n = newest_four(2u, b, first_head / GROUP, lane % D4, before);
#else
            v$n = token4(2u, b, first_head / GROUP, lane % D4, before);
#end
        } else {
            v$n = v_at4(v_from + (first + lane / D4 + $(n)u * ROWS) * V_S);
        }
#else
        v$n = v_at4(v_from + (first + lane / D4 + $(n)u * ROWS) * V_S);       // under way while scores become powers
#end
    }
#end
#if APPEND
    let is_new = before >= first && before < first + KEYS;
#if CODES
    for (var i = lane; i < SHARE * D4; i += LANES) {
        queries[i] = token4(0u, b, first_head + i / D4, i % D4, before) * SCALE * scales_of_four(1u, first_head / GROUP, i % D4);
    }
    if (is_new && lane < D4) { queries[SHARE * D4 + lane] = newest_four(1u, b, first_head / GROUP, lane, before); }
    if (is_new && lane < D4 / $(8 // CODES)u && first_head % GROUP == 0u && lengths_fit(b)) {
        let head = first_head / GROUP;
        keys_store_word((b * K_B + head * K_H + before * K_S + K_FIRST) / $(8 // CODES)u + lane, newest_word(1u, b, head, lane, before));
        values_store_word((b * V_B + head * V_H + before * V_S + V_FIRST) / $(8 // CODES)u + lane, newest_word(2u, b, head, lane, before));
    }
#else
    for (var i = lane; i < SHARE * D4; i += LANES) { queries[i] = token4(0u, b, first_head + i / D4, i % D4, before) * SCALE; }
    if (is_new && lane < D4) {
        let newest = token4(1u, b, first_head / GROUP, lane, before);
        queries[SHARE * D4 + lane] = newest;
        if (first_head % GROUP == 0u && lengths_fit(b)) {
            keys_set4(b * K_B + first_head / GROUP * K_H + before * K_S + K_FIRST + lane, newest);
            values_set4(b * V_B + first_head / GROUP * V_H + before * V_S + V_FIRST + lane, token4(2u, b, first_head / GROUP, lane, before));
        }
    }
#end
    workgroupBarrier();
    if (is_seen && !is_stored) {
#for d in D4 // PARTS
        k$d = queries[SHARE * D4 + part + $(d * PARTS)u];
#end
    }
#else
    for (var i = lane; i < SHARE * D4; i += LANES) {
#if CODES
        queries[i] = q_at4(b * Q_B + (first_head + i / D4) * Q_H + Q_FIRST + i % D4) * SCALE * scales_of_four(1u, first_head / GROUP, i % D4);
#else
        queries[i] = q_at4(b * Q_B + (first_head + i / D4) * Q_H + Q_FIRST + i % D4) * SCALE;
#end
    }
    workgroupBarrier();
#end
#for h in SHARE
    var s$h = 0.0;
#for d in D4 // PARTS
    s$h += dot(queries[$(h)u * D4 + part + $(d * PARTS)u], k$d);
#end
    scores[($(h)u * KEYS + lane / PARTS) * PARTS + part] = s$h;
#end
    workgroupBarrier();
    let h = lane / TEAM;
    var top = LOWEST;
#for n in ROUNDS
    let j$n = lane % TEAM + $(n)u * TEAM;
    let place$n = h * KEYS + min(j$n, KEYS - 1u);
    var p$n = scores[place$n * PARTS];
#for p in PARTS - 1
    p$n += scores[place$n * PARTS + $(p + 1)u];
#end
    p$n = scored(p$n, b, first_head + h, 0u, first + j$n);
    let sees$n = j$n < KEYS && sees(b, first_head + h, 0u, first + j$n, before);
    if (sees$n) { top = max(top, p$n); }
#end
    found[lane] = top;
    workgroupBarrier();
    for (var i = 0u; i < TEAM; i++) { top = max(top, found[h * TEAM + i]); }
    workgroupBarrier();
    var total = 0.0;
#for n in ROUNDS
    p$n = select(0.0, power(p$n - top), sees$n);
    total += p$n;
    if (j$n < KEYS) { scores[place$n] = p$n; }
#end
    found[lane] = total;
    workgroupBarrier();
    if (lane < ROWS * D4) {
#for h in SHARE
        var o$h = vec4<f32>();
#end
#for n in LOADS
        let at$n = lane / D4 + $(n)u * ROWS;
        if (at$n < KEYS) {
#for h in SHARE
            o$h = fma(vec4<f32>(scores[$(h)u * KEYS + at$n]), v$n, o$h);
#end
        }
#end
#for h in SHARE
        joined[($(h)u * ROWS + lane / D4) * D4 + lane % D4] = o$h;
#end
    }
    if (lane % TEAM == 0u) {
        let at = ((b * HEADS + first_head + h) * SPLITS + group.x) * 2u;
        total = 0.0;
        for (var i = 0u; i < TEAM; i++) { total += found[h * TEAM + i]; }
        tops_set(at, top);
        tops_set(at + 1u, total);
    }
    workgroupBarrier();
    for (var i = lane; i < SHARE * D4; i += LANES) {
        var sum = vec4<f32>();
        for (var r = 0u; r < ROWS; r++) { sum += joined[(i / D4 * ROWS + r) * D4 + i % D4]; }
        sums_set4(((b * HEADS + first_head + i / D4) * SPLITS + group.x) * D4 + i % D4, sum);
    }
}
