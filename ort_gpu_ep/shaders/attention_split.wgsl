// Attention of few tokens, over a part of the keys a workgroup, for SHARE queries that read the same keys: for each query and part the
// largest score, the sum of the powers relative to it, and that of the values times them, not yet divided. attention_join.wgsl brings the
// parts together, and reads none that no query sees: those are not written.
// A head of keys has GROUP * SQ queries, those of its heads for the first token, then for the next. The last workgroup may have fewer than SHARE: then it
// computes the last one several times, and writes it once.
// A workgroup takes its keys in steps of KEYS, and rescales what it has where a step has a larger score. PARTS neighbouring invocations read a key, so that loads
// of neighbours lie together, and add their products up through workgroup memory; V_UNITS of them read a row of values. Values are under way while
// scores become powers, and the first keys while queries are turned.
// Grid: parts of the keys, blocks of SHARE queries, heads of keys of all batches.
// Expects: q, keys, values (vectors of four elements), mask?, lengths?, sums (vectors: [batch, token, head, part, D4]), tops ([batch, token, head, part, 2]);
// D4 (vectors of a head), KEY_ROUNDS (keys of a step that an invocation reads), KEY_LOADS (loads of each), LOADS (rows of values), ROUNDS (powers), POWERS (invocations
// of a query that have any), JOINED (queries whose sums are in workgroup memory at once), HEADS KEY_HEADS SPLITS (parts of the keys) SQ (tokens), SCALE,
// and of attention.wgsl its strides and offsets, BEFORE, GROUP, SK, MASK, CAUSAL, CAPPED, LENGTHS, WINDOW.
// With APPEND there is one token: q and the newest key are turned here, and key and value are stored behind those of the steps before, by one of the workgroups
// that have their place. Then x stands for q, perhaps with x_k and x_v beside it, with Q_ROW Q_AT and so on (of a batch, and from which element on), and what
// append_tokens.wgsl says of cosines, sines, positions.
// CODES: as attention.wgsl has it; an invocation loads KEY_WORDS words of keys at a time, one of values, and strides are of these.
// attention_join.wgsl applies the scales of values, so that this binds no buffer for them, unless it stores one.
// Source: Dao et al., Flash-Decoding for long-context inference, 2023.
#default CODES = 0
#include attention_scores.wgsl
#include cache_codes.wgsl
#include seen_parts.wgsl
const LANES: u32 = WORKGROUP_SIZE;
const TEAM: u32 = LANES / SHARE;        // invocations that have a query's powers
const ROWS: u32 = LANES / V_UNITS;      // of values that are read at a time
const AT_ONCE: u32 = LANES / PARTS;     // keys that are read at a time
const LINE: u32 = SHARE * KEYS + 32u / PARTS;   // sums of a part of a key; so 32 neighbours write to as many banks
const K_UNITS: u32 = D4 / $(K_FOURS)u;     // loads of a key
const JOINT: u32 = JOINED * ROWS * D4;
const QUERIES: u32 = GROUP * SQ;        // that read the same keys

#if APPEND
var<workgroup> queries: array<vec4<f32>, (SHARE + 2u) * D4>;    // and the newest key and value
var<workgroup> newest: array<f32, SHARE>;       // its powers
#else
var<workgroup> queries: array<vec4<f32>, SHARE * D4>;
#end
var<workgroup> scores: array<f32, max(LINE * PARTS, 4u * JOINT)>;       // at the end, sums
var<workgroup> powers: array<f32, KEYS * SHARE>;
var<workgroup> found: array<f32, LANES>;
var<workgroup> factors: array<f32, SHARE>;

#if CODES
#let FOURS = 8 // CODES
alias value_unit = u32;
fn value_load(i: u32) -> value_unit { return values_word(i); }
fn value_four(unit: value_unit, f: u32) -> vec4<f32> { return codes_in(unit, f); }
#if KEY_WORDS == 4
alias key_unit = vec4<u32>;
fn key_load(i: u32) -> key_unit { return keys_word4(i); }
fn key_four(unit: key_unit, f: u32) -> vec4<f32> { return codes_in(unit[f / $(FOURS)u], f); }
#else
alias key_unit = u32;
fn key_load(i: u32) -> key_unit { return keys_word(i); }
fn key_four(unit: key_unit, f: u32) -> vec4<f32> { return codes_in(unit, f); }
#end
#else
alias key_unit = keys_four_t;
alias value_unit = values_four_t;
fn key_load(i: u32) -> key_unit { return keys_four(i); }
fn value_load(i: u32) -> value_unit { return values_four(i); }
fn key_four(unit: key_unit, f: u32) -> vec4<f32> { return keys_of_four(unit); }
fn value_four(unit: value_unit, f: u32) -> vec4<f32> { return values_of_four(unit); }
#end

// Of a query's four elements in workgroup memory: what neighbours need at a time, each for its load of a key, lies together.
fn place_of(d4: u32) -> u32 { return d4 % $(K_FOURS)u * K_UNITS + d4 / $(K_FOURS)u; }

fn dot_onto(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 { return fma(a.x, b.x, fma(a.y, b.y, fma(a.z, b.z, fma(a.w, b.w, sum)))); }

#if APPEND
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
    let b = group.z / KEY_HEADS;
    let head = group.z % KEY_HEADS;
    let first_query = group.y * SHARE;
#if LENGTHS
    let before = tokens_before(b);
#else
    let before = BEFORE;
#end
    // The same for the whole workgroup.
    if (group.x >= end_part(before)) { return; }
    let begin = first_key(before) + group.x * keys_of_part(before);
    let end = min(begin + keys_of_part(before), end_key(before));
#if APPEND
    let end_stored = min(end, before);
#else
    let end_stored = end;
#end
    let last_stored = max(end_stored, 1u) - 1u;
    let part = lane % PARTS;
    let k_from = b * K_B + head * K_H + K_FIRST + part;
    let v_from = b * V_B + head * V_H + V_FIRST + lane % V_UNITS;
    // What is loaded becomes numbers where it is needed, so that no load waits for the one before. Behind the last key that is stored it is that one
    // again, with a power of 0: other memory may hold anything.
#for n in KEY_ROUNDS
#for d in KEY_LOADS
    var k$(n)_$d = key_unit();
#end
#end
    if (begin < end_stored) {
#for n in KEY_ROUNDS
        let row$n = k_from + min(begin + lane / PARTS + $(n)u * AT_ONCE, last_stored) * K_S;
#for d in KEY_LOADS
        k$(n)_$d = key_load(row$n + $(d)u * PARTS);
#end
#end
    }
#if APPEND
    let is_new = before >= begin && before < end;
    let is_stored = is_new && first_query == 0u && lengths_fit(b);
    for (var i = lane; i < select(SHARE * D4, (SHARE + 2u) * D4, is_new); i += LANES) {
        let part = max(i / D4, SHARE - 1u) - (SHARE - 1u);      // 0 of queries, 1 of the key, 2 of the value
        let d = i % D4;
        let token = token4(part, b, select(head, head * GROUP + min(first_query + i / D4, QUERIES - 1u), part == 0u), d, before);
#if CODES
        if (part == 0u) {
            queries[i - d + place_of(d)] = token * SCALE * scales_of_four(1u, head, d);
        } else {
            queries[i] = codes_of_four(part, head, d, token);
        }
#else
        queries[i] = select(token, token * SCALE, part == 0u);
        if (is_stored && part == 1u) { keys_set4(b * K_B + head * K_H + before * K_S + K_FIRST + d, token); }
        if (is_stored && part == 2u) { values_set4(b * V_B + head * V_H + before * V_S + V_FIRST + d, token); }
#end
    }
    workgroupBarrier();
#if CODES
    if (is_stored && lane < K_UNITS) {
        let at = b * K_B + head * K_H + before * K_S + K_FIRST + lane;
#if KEY_WORDS == 4
        let word = 4u * lane;
        keys_store_word4(at, vec4<u32>(newest_word(SHARE * D4, word), newest_word(SHARE * D4, word + 1u),
                                       newest_word(SHARE * D4, word + 2u), newest_word(SHARE * D4, word + 3u)));
#else
        keys_store_word(at, newest_word(SHARE * D4, lane));
#end
    }
    if (is_stored && lane < V_UNITS) {
        let at = b * V_B + head * V_H + before * V_S + V_FIRST + lane;
        values_store_word(at, newest_word((SHARE + 1u) * D4, lane));
    }
#end
#else
    for (var i = lane; i < SHARE * D4; i += LANES) {
        let query = min(first_query + i / D4, QUERIES - 1u);
        let four = q_at4(b * Q_B + (head * GROUP + query % GROUP) * Q_H + query / GROUP * Q_S + Q_FIRST + i % D4) * SCALE;
#if CODES
        queries[i - i % D4 + place_of(i % D4)] = four * scales_of_four(1u, head, i % D4);
#else
        queries[i] = four;
#end
    }
    workgroupBarrier();
#end
    let h = lane / TEAM;
    let query = min(first_query + h, QUERIES - 1u);     // whose powers this invocation has
    let query_head = head * GROUP + query % GROUP;
    let token = query / GROUP;
    var top = LOWEST;
    var total = 0.0;
#for h in SHARE
#for f in V_FOURS
    var o$(h)_$f = vec4<f32>();
#end
#end
    for (var first = begin; first < end; first += KEYS) {
        let next = first + KEYS;
        {
#for h in SHARE
#for n in KEY_ROUNDS
            var s$(h)_$n = 0.0;
#end
#end
#for d in KEY_LOADS
#for f in K_FOURS
            {
#for h in SHARE
                let q$h = queries[$(h)u * D4 + $(f)u * K_UNITS + part + $(d)u * PARTS];
#end
#for n in KEY_ROUNDS
                let c$n = key_four(k$(n)_$d, $(f)u);
#for h in SHARE
                s$(h)_$n = dot_onto(q$h, c$n, s$(h)_$n);
#end
#end
            }
#end
#end
            let place = part * LINE + lane / PARTS;
#for h in SHARE
#for n in KEY_ROUNDS
            scores[place + $(h)u * KEYS + $(n)u * AT_ONCE] = s$(h)_$n;
#end
#end
#if APPEND
            // by the invocations that have its place
            if (before >= first && before - first < KEYS && (before - first) % AT_ONCE == lane / PARTS) {
#for h in SHARE
                var new$h = 0.0;
#end
                for (var d = part; d < D4; d += PARTS) {
                    let key = queries[SHARE * D4 + d];
#for h in SHARE
                    new$h = dot_onto(queries[$(h)u * D4 + place_of(d)], key, new$h);
#end
                }
#for h in SHARE
                scores[part * LINE + $(h)u * KEYS + before - first] = new$h;
#end
            }
#end
        }
#for n in LOADS
        var v$n = value_unit();
#end
        if (first < end_stored && lane < ROWS * V_UNITS) {
#for n in LOADS
            v$n = value_load(v_from + min(first + lane / V_UNITS + $(n)u * ROWS, last_stored) * V_S);
#end
        }
        workgroupBarrier();
        var most = top;
#for n in ROUNDS
        let j$n = lane % TEAM + $(n)u * TEAM;
        let place$n = h * KEYS + min(j$n, KEYS - 1u);
        var p$n = scores[place$n];
#for p in PARTS - 1
        p$n += scores[place$n + $(p + 1)u * LINE];
#end
        p$n = scored(p$n, b, query_head, token, first + j$n);
        let sees$n = j$n < KEYS && sees(b, query_head, token, first + j$n, before);
        if (sees$n) { most = max(most, p$n); }
#end
        found[lane] = most;
        workgroupBarrier();
#for i in POWERS
        most = max(most, found[h * TEAM + $(i)u]);
#end
        let factor = power(top - most);
        top = most;
        total *= factor;
        if (lane % TEAM == 0u) { factors[h] = factor; }
#for n in ROUNDS
        p$n = select(0.0, power(p$n - top), sees$n);
        total += p$n;
#if APPEND
        if (first + j$n == before) {
            newest[h] = p$n;
            p$n = 0.0;
        }
#end
        if (j$n < KEYS) { powers[j$n * SHARE + h] = p$n; }
#end
        workgroupBarrier();
        var changes = false;
#for h in SHARE
        let factor$h = factors[$h];
        changes = changes || factor$h != 1.0;
#end
        if (changes) {
#for h in SHARE
#for f in V_FOURS
            o$(h)_$f *= factor$h;
#end
#end
        }
        if (lane < ROWS * V_UNITS) {
#for n in LOADS
            {
                let at = lane / V_UNITS + $(n)u * ROWS;
#if KEYS % (WORKGROUP_SIZE // V_UNITS)
                if (at < KEYS) {
#end
#for f in V_FOURS
                let c$f = value_four(v$n, $(f)u);
#end
#for h in SHARE
                let p$h = vec4<f32>(powers[at * SHARE + $(h)u]);
#for f in V_FOURS
                o$(h)_$f = fma(p$h, c$f, o$(h)_$f);
#end
#end
#if KEYS % (WORKGROUP_SIZE // V_UNITS)
                }
#end
            }
#end
        }
        if (next < end_stored) {
#for n in KEY_ROUNDS
            let row$n = k_from + min(next + lane / PARTS + $(n)u * AT_ONCE, last_stored) * K_S;
#for d in KEY_LOADS
            k$(n)_$d = key_load(row$n + $(d)u * PARTS);
#end
#end
        }
    }
    found[lane] = total;
    workgroupBarrier();
    if (lane % TEAM == 0u && first_query + h < QUERIES) {
        let at = (((b * SQ + token) * HEADS + query_head) * SPLITS + group.x) * 2u;
        total = 0.0;
#for i in POWERS
        total += found[h * TEAM + $(i)u];
#end
        tops_set(at, top);
        tops_set(at + 1u, total);
    }
#for j in SHARE // JOINED
#if j
    workgroupBarrier();
#end
    if (lane < ROWS * V_UNITS) {
#for h in JOINED
#for f in V_FOURS
        {
            let at = ($(h)u * ROWS + lane / V_UNITS) * D4 + lane % V_UNITS * $(V_FOURS)u + $(f)u;
#for c in 4
            scores[at + $(c)u * JOINT] = o$(j * JOINED + h)_$f[$c];
#end
        }
#end
#end
    }
    workgroupBarrier();
    for (var i = lane; i < JOINED * D4; i += LANES) {
        var sum = vec4<f32>();
#for r in WORKGROUP_SIZE // V_UNITS
        {
            let at = (i / D4 * ROWS + $(r)u) * D4 + i % D4;
            sum += vec4<f32>(scores[at], scores[at + JOINT], scores[at + 2u * JOINT], scores[at + 3u * JOINT]);
        }
#end
        let own = $(j * JOINED)u + i / D4;
#if APPEND
        if (is_new) { sum = fma(vec4<f32>(newest[own]), queries[(SHARE + 1u) * D4 + i % D4], sum); }
#end
        let query = first_query + own;
        let row = (b * SQ + query / GROUP) * HEADS + head * GROUP + query % GROUP;
        if (query < QUERIES) { sums_set4((row * SPLITS + group.x) * D4 + i % D4, sum); }
    }
#end
}
