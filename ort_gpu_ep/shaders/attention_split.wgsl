// Attention of one query for each head, over KEYS keys a workgroup, for SHARE heads that read the same keys: for each head and part of the
// keys the largest score, the sum of the powers relative to it, and that of the values times them, not yet divided. attention_join.wgsl
// brings the parts together, and reads none that no query sees: those are not written. PARTS neighbouring invocations read a key, so that
// loads of neighbours lie together, and add their products up through workgroup memory; D4 of them read a row of values.
// Grid: parts of the keys, blocks of SHARE heads, batches.
// Expects: q, k, v (vectors of four elements), mask?, lengths?, sums (vectors: [batch, head, part, D4]), tops ([batch, head, part, 2]);
// D4 (vectors of a head), KEY_ROUNDS (keys that an invocation reads), LOADS (rows of values), ROUNDS (powers), POWERS (invocations of a head that have any), HEADS SPLITS (parts of the keys) SQ (1), SCALE,
// and of attention.wgsl its strides and offsets, BEFORE, GROUP, SK, MASK, CAUSAL, CAPPED, LENGTHS, WINDOW.
// With APPEND q and the newest key are tokens, turned here, and key and value are stored behind those of the steps before, by one of the workgroups that have
// their place. Then keys and values, which are written, stand for k and v, and x for q, perhaps x_k and x_v beside it, with Q_ROW Q_AT and so on (of a
// batch, and from which element on), and what append_tokens.wgsl says of cosines, sines, positions.
// Source: Dao et al., Flash-Decoding for long-context inference, 2023.
#default CODES = 0
#default WHOLE = 0
#if WHOLE
// WHOLE: a workgroup has all KEYS of a window, and gives y as attention_join.wgsl does; with sink?, Y_B Y_H EMPTY_IS_ZERO SINK as that has them.
#end
#if CODES
// CODES: as attention.wgsl has it; attention_join.wgsl applies the scales of values, so that this binds no buffer for them, unless it stores one.
#end
#include attention_scores.wgsl
#include cache_codes.wgsl
#if not WHOLE
#include seen_parts.wgsl
#end
const LANES: u32 = WORKGROUP_SIZE;
const TEAM: u32 = LANES / SHARE;        // invocations that have a head's powers
const ROWS: u32 = LANES / D4;           // of values that are read at a time
const AT_ONCE: u32 = LANES / PARTS;     // keys that are read at a time
const LINE: u32 = SHARE * KEYS + 32u / PARTS;   // sums of a part of a key; so 32 neighbours write to as many banks

#if APPEND
var<workgroup> queries: array<vec4<f32>, (SHARE + 2u) * D4>;    // and the newest key and value
#else
var<workgroup> queries: array<vec4<f32>, SHARE * D4>;
#end
var<workgroup> scores: array<f32, LINE * PARTS>;
var<workgroup> found: array<f32, LANES>;
var<workgroup> joined: array<vec4<f32>, SHARE * ROWS * D4>;
#if WHOLE
var<workgroup> shares: array<f32, SHARE>;
#end

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
fn four(part: u32, i: u32) -> vec4<f32> {
#if HAS_X_K
    if (part == 1u) { return vec4<f32>(x_k_at(i), x_k_at(i + 1u), x_k_at(i + 2u), x_k_at(i + 3u)); }
#end
#if HAS_X_V
    if (part == 2u) { return vec4<f32>(x_v_at(i), x_v_at(i + 1u), x_v_at(i + 2u), x_v_at(i + 3u)); }
#end
    return vec4<f32>(x_at(i), x_at(i + 1u), x_at(i + 2u), x_at(i + 3u));
}

fn origin(part: u32, b: u32, head: u32) -> u32 {
    if (part == 0u) { return b * Q_ROW + Q_AT + head * HEAD; }
    if (part == 1u) { return b * K_ROW + K_AT + head * HEAD; }
    return b * V_ROW + V_AT + head * HEAD;
}

#include token_position.wgsl

// Four elements of the token: of a query (part 0), the key (1) or the value (2), the first two turned.
fn token4(part: u32, b: u32, head: u32, d4: u32, before: u32) -> vec4<f32> {
    let from_token = origin(part, b, head);
    let d = 4u * d4;
    let v = four(part, from_token + d);
#if ROTARY
    let row = min(token_position(b, 0u, before), COSINES - 1u) * HALF;
    if (part == 2u || d >= 2u * HALF) { return v; }
#if INTERLEAVED
    let other = v.yxwz * vec4<f32>(-1.0, 1.0, -1.0, 1.0);
    let pairs = row + d / 2u + vec4<u32>(0u, 0u, 1u, 1u);
#else
    let is_second = d >= HALF;
    let other = four(part, from_token + select(d + HALF, d - HALF, is_second)) * select(-1.0, 1.0, is_second);
    let pairs = row + d % HALF + vec4<u32>(0u, 1u, 2u, 3u);
#end
    let cosines = vec4<f32>(cosines_at(pairs.x), cosines_at(pairs.y), cosines_at(pairs.z), cosines_at(pairs.w));
    let sines = vec4<f32>(sines_at(pairs.x), sines_at(pairs.y), sines_at(pairs.z), sines_at(pairs.w));
    return fma(cosines, v, sines * other);
#else
    return v;
#end
}
#if CODES

fn newest_word(from_four: u32, word: u32) -> u32 {
    var bits = 0u;
#for n in 8 // CODES
    bits |= bits_of(queries[from_four + word * $(8 // CODES)u + $(n)u]) << $(16 * n)u;
#end
    return bits;
}
#end
#end

fn grid_main(group: vec3<u32>, lane: u32) {
    let b = group.z;
    let first_head = group.y * SHARE;
#if LENGTHS
    let before = tokens_before(b);
#else
    let before = BEFORE;
#end
#if WHOLE
    let first = max(before + 1u, WINDOW) - WINDOW;
#else
    let first = group.x * KEYS;
    // The same for the whole workgroup.
    if (group.x < first_part(before) || group.x >= end_part(b, before)) { return; }
#end
    let part = lane % PARTS;
    let v_from = b * V_B + first_head / GROUP * V_H + V_FIRST + lane % D4;
#for n in KEY_ROUNDS
    let key$n = first + lane / PARTS + $(n)u * AT_ONCE;
    let k_from$n = b * K_B + first_head / GROUP * K_H + min(key$n, SK - 1u) * K_S + K_FIRST + part;
    let is_seen$n = sees(b, first_head, 0u, key$n, before);
#for d in D4 // PARTS
    var k$(n)_$d = vec4<f32>();
#end
#if APPEND
    let is_stored$n = is_seen$n && key$n != before;
#else
    let is_stored$n = is_seen$n;
#end
    if (is_stored$n) {
#for d in D4 // PARTS
        k$(n)_$d = k_at4(k_from$n + $(d * PARTS)u);
#end
    }
#end
#for n in LOADS
    let row$n = first + lane / D4 + $(n)u * ROWS;
    var v$n = vec4<f32>();
#if APPEND
    let is_old$n = row$n != before;
#else
    let is_old$n = true;
#end
    if (lane < ROWS * D4 && is_old$n && sees(b, first_head, 0u, row$n, before)) {
        v$n = v_at4(v_from + row$n * V_S);       // under way while scores become powers
    }
#end
#if APPEND
    let is_new = before >= first && before < first + KEYS;
    let head = first_head / GROUP;
    let is_stored = is_new && first_head % GROUP == 0u && lengths_fit(b);
    for (var i = lane; i < select(SHARE * D4, (SHARE + 2u) * D4, is_new); i += LANES) {
        let part = max(i / D4, SHARE - 1u) - (SHARE - 1u);      // 0 of queries, 1 of the key, 2 of the value
        let d = i % D4;
        let token = token4(part, b, select(head, first_head + i / D4, part == 0u), d, before);
#if CODES
        queries[i] = select(codes_of_four(part, head, d, token), token * SCALE * scales_of_four(1u, head, d), part == 0u);
#else
        queries[i] = select(token, token * SCALE, part == 0u);
        if (is_stored && part == 1u) { keys_set4(b * K_B + head * K_H + before * K_S + K_FIRST + d, token); }
        if (is_stored && part == 2u) { values_set4(b * V_B + head * V_H + before * V_S + V_FIRST + d, token); }
#end
    }
    workgroupBarrier();
#if CODES
    if (is_stored && lane < D4 / $(8 // CODES)u) {
        keys_store_word((b * K_B + head * K_H + before * K_S + K_FIRST) / $(8 // CODES)u + lane, newest_word(SHARE * D4, lane));
        values_store_word((b * V_B + head * V_H + before * V_S + V_FIRST) / $(8 // CODES)u + lane, newest_word((SHARE + 1u) * D4, lane));
    }
#end
#for n in LOADS
    if (lane < ROWS * D4 && row$n == before) { v$n = queries[(SHARE + 1u) * D4 + lane % D4]; }
#end
#for n in KEY_ROUNDS
    if (is_seen$n && !is_stored$n) {
#for d in D4 // PARTS
        k$(n)_$d = queries[SHARE * D4 + part + $(d * PARTS)u];
#end
    }
#end
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
#for n in KEY_ROUNDS
    var s$(h)_$n = 0.0;
#end
#for d in D4 // PARTS
    let q$(h)_$d = queries[$(h)u * D4 + part + $(d * PARTS)u];
#for n in KEY_ROUNDS
    s$(h)_$n += dot(q$(h)_$d, k$(n)_$d);
#end
#end
#for n in KEY_ROUNDS
    scores[part * LINE + $(h)u * KEYS + lane / PARTS + $(n)u * AT_ONCE] = s$(h)_$n;
#end
#end
    workgroupBarrier();
    let h = lane / TEAM;
    var top = LOWEST;
#for n in ROUNDS
    let j$n = lane % TEAM + $(n)u * TEAM;
    let place$n = h * KEYS + min(j$n, KEYS - 1u);
    var p$n = scores[place$n];
#for p in PARTS - 1
    p$n += scores[place$n + $(p + 1)u * LINE];
#end
    p$n = scored(p$n, b, first_head + h, 0u, first + j$n);
    let sees$n = j$n < KEYS && sees(b, first_head + h, 0u, first + j$n, before);
    if (sees$n) { top = max(top, p$n); }
#end
    found[lane] = top;
    workgroupBarrier();
#for i in POWERS
    top = max(top, found[h * TEAM + $(i)u]);
#end
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
        let at$n = row$n - first;
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
        total = 0.0;
#for i in POWERS
        total += found[h * TEAM + $(i)u];
#end
#if WHOLE
#if SINK
#if SINK == 1
        let sink = sink_at(first_head + h);
#else
        let sink = 0.0;
#end
        let whole = fma(total, power(top - max(top, sink)), power(sink - max(top, sink)));
        let share = power(top - max(top, sink)) / whole;
#else
        let whole = total;
        let share = 1.0 / whole;
#end
#if EMPTY_IS_ZERO
        shares[h] = select(share, 0.0, whole == 0.0);
#else
        shares[h] = share;
#end
#else
        let at = ((b * HEADS + first_head + h) * SPLITS + group.x) * 2u;
        tops_set(at, top);
        tops_set(at + 1u, total);
#end
    }
    workgroupBarrier();
    for (var i = lane; i < SHARE * D4; i += LANES) {
        var sum = vec4<f32>();
#for r in WORKGROUP_SIZE // D4
        sum += joined[(i / D4 * ROWS + $(r)u) * D4 + i % D4];
#end
#if WHOLE
        y_set4(b * Y_B + (first_head + i / D4) * Y_H + i % D4, sum * shares[i / D4]);
#else
        sums_set4(((b * HEADS + first_head + i / D4) * SPLITS + group.x) * D4 + i % D4, sum);
#end
    }
}
