// y[c, n] = ALPHA * sum over k of weight[n, k] * x[c, k] + BETA * bias for COLS vectors c, the weights read as they are packed.
// A workgroup sums ROWS rows; its invocations share K, neighbours read neighbouring words, and each has VEC words of a row under way.
// weight[n, k] = (code - zero) * scale, a scale (and zero) for BLOCK codes of a row, or with BLOCK 0 for the row; or CODEBOOK: table[code].
// Expects: w (rows of WORDS words; codes of BITS, the first in the low bits), high? (a second plane: HIGH more bits of each code, in
// HIGH / BITS as many words), x, table (scales, or a codebook of TABLE_SIZE <= ENTRIES = 2^bits), zp?, c?, y; N K COLS ROWS VEC,
// TABLE_ROW TABLE_BLOCK (strides of the scales),
// ZP_BITS (codes in bytes; 0: elements), ZP_ROW ZP_BLOCK, ZERO (added to each zero point), WHOLE (all zero points are whole numbers),
// FLIP (bits of each word to turn), X4, X_COL X_K (strides), Y_COL Y_ROW, c_index, ALPHA BETA.
const PER: u32 = 32u / BITS;
const EXACT: bool = K == WORDS * PER && WORDS % (WORKGROUP_SIZE * VEC) == 0u;
const MAGIC: f32 = 8388608.0;   // 2^23: a float whose low bits are the whole numbers above it
const COPIES: u32 = min(32u, 2048u / ENTRIES);
var<workgroup> sums: array<f32, WORKGROUP_SIZE * ROWS * COLS>;
#if CODEBOOK
const BOOK: u32 = ENTRIES * COPIES;
var<workgroup> book: array<f32, BOOK>;   // a copy for each few invocations: hardly two meet in a bank
#end

fn x_four(c: u32, k: u32) -> vec4<f32> {
#if X4
    if (EXACT || k < K) { return x_at4((c * X_COL + k) / 4u); }
    return vec4<f32>();
#else
    var found = vec4<f32>();
    let at = c * X_COL + k * X_K;
    if (k < K) { found.x = x_at(at); }
    if (k + 1u < K) { found.y = x_at(at + X_K); }
    if (k + 2u < K) { found.z = x_at(at + 2u * X_K); }
    if (k + 3u < K) { found.w = x_at(at + 3u * X_K); }
    return found;
#end
}

// Codes 4 i ... 4 i + 3 of a word.
fn four(word: u32, i: u32) -> vec4<u32> {
    let part = word >> (4u * BITS * i);
    return vec4<u32>(part, part >> BITS, part >> (2u * BITS), part >> (3u * BITS)) & vec4<u32>((1u << BITS) - 1u);
}

#if HIGH
// The upper bits of codes 4 i ... 4 i + 3 after the code whose upper bits begin at a bit of the second plane.
fn high_four(bit: u32, i: u32) -> vec4<u32> {
    let part = high_word((bit + 4u * HIGH * i) / 32u) >> ((bit + 4u * HIGH * i) % 32u);
    return vec4<u32>(part, part >> HIGH, part >> (2u * HIGH), part >> (3u * HIGH)) & vec4<u32>((1u << HIGH) - 1u);
}
#end

#include zero_point.wgsl

fn base_of(row: u32, block: u32) -> f32 { return zero_of(row, block) + select(0.0, MAGIC, WHOLE); }

fn number(codes: vec4<u32>, zero: f32) -> vec4<f32> {
    let above = bitcast<vec4<f32>>(codes | vec4<u32>(0x4b000000u));
    if (WHOLE) { return above - zero; }
    return above - MAGIC - zero;
}

#if CODEBOOK
fn looked_up(codes: vec4<u32>, copy: u32) -> vec4<f32> {
    let at = codes * COPIES + copy;
    return vec4<f32>(book[at.x], book[at.y], book[at.z], book[at.w]);
}
#end

fn group_main(group: u32, lane: u32) {
    let copy = lane % COPIES;
#if CODEBOOK
    for (var i = lane; i < ENTRIES * COPIES; i += WORKGROUP_SIZE) { book[i] = table_at(min(i / COPIES, TABLE_SIZE - 1u)); }
    workgroupBarrier();
#end
#for r in ROWS
    let row$r = min(group * ROWS + $(r)u, N - 1u);
#if BLOCK == 0 and not CODEBOOK
    let zero$r = base_of(row$r, 0u);
#end
#for c in COLS
    var sum$(r)_$c = 0.0;
#end
#end
    for (var q = lane; q < WORDS; q += WORKGROUP_SIZE * VEC) {
#for v in VEC
        let at$v = min(q + $(v)u * WORKGROUP_SIZE, WORDS - 1u);      // past the end x is 0
#for r in ROWS
        let word$(r)_$v = w_word(row$r * WORDS + at$v) ^ FLIP;
#end
#for c in COLS
#for i in (32 // BITS) // 4
        let x$(c)_$(v * (32 // BITS) // 4 + i) = x_four($(c)u, (q + $(v)u * WORKGROUP_SIZE) * PER + $(4 * i)u);
#end
#end
#end
#for r in ROWS
        {
#for v in VEC
            {
                let word = word$(r)_$v;
#if HIGH
                let high_at = (row$r * WORDS + at$v) * PER * HIGH;   // in bits
#end
#if BLOCK
                let block = at$v * PER / BLOCK;
                let zero = base_of(row$r, block);
                let scale = table_at(row$r * TABLE_ROW + block * TABLE_BLOCK);
#for c in COLS
                var part$c = 0.0;
#end
#end
#for i in (32 // BITS) // 4
#if CODEBOOK
#if HIGH
                let codes$i = four(word, $(i)u) | (high_four(high_at, $(i)u) << vec4<u32>(BITS));
#else
                let codes$i = four(word, $(i)u);
#end
                let w$i = looked_up(codes$i, copy);
#else
#if BLOCK
                let w$i = number(four(word, $(i)u), zero);
#else
                let w$i = number(four(word, $(i)u), zero$r);
#end
#end
#for c in COLS
#if BLOCK
                part$c += dot(w$i, x$(c)_$(v * (32 // BITS) // 4 + i));
#else
                sum$(r)_$c += dot(w$i, x$(c)_$(v * (32 // BITS) // 4 + i));
#end
#end
#end
#if BLOCK
#for c in COLS
                sum$(r)_$c = fma(scale, part$c, sum$(r)_$c);
#end
#end
            }
#end
        }
#end
    }
#for r in ROWS
#for c in COLS
    sums[$(r * COLS + c)u * WORKGROUP_SIZE + lane] = sum$(r)_$c;
#end
#end
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
#for o in ROWS * COLS
            sums[$(o)u * WORKGROUP_SIZE + lane] += sums[$(o)u * WORKGROUP_SIZE + lane + half];
#end
        }
    }
    workgroupBarrier();
    let row = group * ROWS + lane / COLS;
    if (lane < ROWS * COLS && row < N) {
        let i = lane % COLS * Y_COL + row * Y_ROW;
        var v = ALPHA * sums[lane * WORKGROUP_SIZE];
#if BLOCK == 0 and not CODEBOOK
        v *= table_at(row * TABLE_ROW);
#end
        if (HAS_C) { v += BETA * c_at(c_index(i)); }
        y_set(i, v);
    }
}
