// y[outer, n, j] = ALPHA * sum over k of weight[n, k] * x[k, j] + BETA * bias: tiles of TN rows and TJ columns; each step unpacks STEP
// codes of the rows into workgroup memory. An invocation owns 4 x 4 elements: rows r + e * RQ, columns q + e * CQ, e = 0..3; TOGETHER (rows
// share words, as packed_matvec.wgsl reads them) rows 4 r + e.
// Expects: w high? table zp? c? y and what describes them as packed_matvec.wgsl has it, x; N (rows of a group) J K,
// TILES_N TILES_J TN TJ STEP, GROUPS_X (groups of rows that share no columns), X_BATCH X_GROUP X_COL X_K, X_K_FAST, Y_COL Y_ROW Y_OUTER;
// IM2COL: k is (channel, tap), j an output pixel; the window as conv.py's Window.consts writes it.
const PER: u32 = 32u / BITS;
const RQ: u32 = TN / 4u;
const CQ: u32 = TJ / 4u;
const MAGIC: f32 = 8388608.0;   // 2^23: a float whose low bits are the whole numbers above it
const SWIZZLE: u32 = select(0u, min(CQ, 8u) - 1u, X_K_FAST);
var<workgroup> w_tile: array<vec4<f32>, RQ * STEP>;
var<workgroup> x_tile: array<vec4<f32>, CQ * STEP>;
#if CODEBOOK
var<workgroup> book: array<f32, ENTRIES>;
#end
var<private> acc: mat4x4<f32>;   // a column for each of the four rows
var<private> x_start: u32;

#include zero_point.wgsl

#default LEVELS = 0
#if LEVELS
// LEVELS as packed_matvec.wgsl has it.
#include levels.wgsl

#end
// Codes 4 i ... 4 i + 3 of a word of a row, as weights.
fn weights(row: u32, index: u32, word: u32, i: u32, scale: f32, zero: f32) -> vec4<f32> {
    let part = word >> (4u * BITS * i);
    var codes = vec4<u32>(part, part >> BITS, part >> (2u * BITS), part >> (3u * BITS)) & vec4<u32>((1u << BITS) - 1u);
#if HIGH
    let bit = ((row * WORDS + index) * PER + 4u * i) * HIGH;
    let high = high_word(bit / 32u) >> (bit % 32u);
    codes |= (vec4<u32>(high, high >> HIGH, high >> (2u * HIGH), high >> (3u * HIGH)) & vec4<u32>((1u << HIGH) - 1u)) << vec4<u32>(BITS);
#end
#if LEVELS
    return vec4<f32>(book[codes.x], book[codes.y], book[codes.z], book[codes.w]) * scale;
#end
#if CODEBOOK and not LEVELS
    return vec4<f32>(book[codes.x], book[codes.y], book[codes.z], book[codes.w]);
#end
#if not CODEBOOK
    return (bitcast<vec4<f32>>(codes | vec4<u32>(0x4b000000u)) - MAGIC - zero) * scale;
#end
}

#if TOGETHER
// Four words of PER rows: as many entries of the tile as four words of a row each.
fn unpack(first: u32, n0: u32, k0: u32, t: u32) {
    let octet = t / (STEP / 4u);
    let k = k0 + t % (STEP / 4u) * 4u;
    let row = n0 + octet * PER;
    if (row >= N || k >= K) {
#for i in 4
#for s in 8 // BITS
        w_tile[(k - k0 + $(i)u) * RQ + octet * $(8 // BITS)u + $(s)u] = vec4<f32>();
#end
#end
        return;
    }
    let four = w_word4((row / PER * WORDS + k) / 4u);
#if BLOCK
    let block = k / BLOCK;
#else
    let block = 0u;
#end
#if HAS_ZEROS
    let zeros = zeros_word(row / PER * BLOCKS + block);
#end
#for s in 8 // BITS
    {
#for e in 4
        let row$e = min(row + $(4 * s + e)u, N - 1u);
#if HAS_ZEROS
        let zero$e = f32(extractBits(zeros, $((4 * s + e) * BITS)u, BITS));
#else
        let zero$e = zero_of(row$e, block);
#end
#end
#if SCALES
        let scale = scales_at4((row / PER * BLOCKS + block) * $(8 // BITS)u + $(s)u);
#else
        let scale = vec4<f32>(
            table_at(row0 * TABLE_ROW + block * TABLE_BLOCK), table_at(row1 * TABLE_ROW + block * TABLE_BLOCK),
            table_at(row2 * TABLE_ROW + block * TABLE_BLOCK), table_at(row3 * TABLE_ROW + block * TABLE_BLOCK));
#end
#for i in 4
        let part$i = four[$i] >> $(4 * s * BITS)u;
        let codes$i = vec4<u32>(part$i, part$i >> BITS, part$i >> (2u * BITS), part$i >> (3u * BITS)) & vec4<u32>((1u << BITS) - 1u);
        w_tile[(k - k0 + $(i)u) * RQ + octet * $(8 // BITS)u + $(s)u]
            = (bitcast<vec4<f32>>(codes$i | vec4<u32>(0x4b000000u)) - MAGIC - vec4<f32>(zero0, zero1, zero2, zero3)) * scale;
#end
    }
#end
}
#else
// A word of each of four rows: PER entries of the tile.
fn unpack(first: u32, n0: u32, k0: u32, t: u32) {
    let r = t % RQ;
    let index = k0 / PER + t / RQ;
#for e in 4
    let at$e = n0 + r + $(e)u * RQ;
    let row$e = first + min(at$e, N - 1u);
    var word$e = 0u;
    if (at$e < N && index < WORDS) { word$e = w_word(row$e * WORDS + index) ^ FLIP; }
    var scale$e = 0.0;
    var zero$e = 0.0;
#if LEVELS or not CODEBOOK
#if BLOCK
    let block$e = index * PER / BLOCK;
#else
    let block$e = 0u;
#end
    if (at$e < N && index * PER < K) {
        scale$e = table_at(row$e * TABLE_ROW + block$e * TABLE_BLOCK);
        zero$e = zero_of(row$e, block$e);
    }
#end
#end
#for i in (32 // BITS) // 4
    {
#for e in 4
        let v$e = weights(row$e, index, word$e, $(i)u, scale$e, zero$e);
#end
        let at = (t / RQ * PER + $(4 * i)u) * RQ + r;
        w_tile[at] = vec4<f32>(v0.x, v1.x, v2.x, v3.x);
        w_tile[at + RQ] = vec4<f32>(v0.y, v1.y, v2.y, v3.y);
        w_tile[at + 2u * RQ] = vec4<f32>(v0.z, v1.z, v2.z, v3.z);
        w_tile[at + 3u * RQ] = vec4<f32>(v0.w, v1.w, v2.w, v3.w);
    }
#end
}
#end

fn x_or_zero(k: u32, j: u32) -> f32 {
    if (k >= K || j >= J) { return 0.0; }
    if (!IM2COL) { return x_at(x_start + j * X_COL + k * X_K); }
    let tap = k % (WINDOW_Z * WINDOW_Y * WINDOW_X);
    let channel = k / (WINDOW_Z * WINDOW_Y * WINDOW_X);
    let z = i32(j / (OUT_HEIGHT * OUT_WIDTH) * STRIDE_Z + tap / (WINDOW_Y * WINDOW_X) * DILATION_Z) - i32(PAD_Z);
    let y = i32(j / OUT_WIDTH % OUT_HEIGHT * STRIDE_Y + tap / WINDOW_X % WINDOW_Y * DILATION_Y) - i32(PAD_Y);
    let x = i32(j % OUT_WIDTH * STRIDE_X + tap % WINDOW_X * DILATION_X) - i32(PAD_X);
    if (u32(z) >= DEPTH || u32(y) >= HEIGHT || u32(x) >= WIDTH) { return 0.0; }
    return x_at(x_start + ((channel * DEPTH + u32(z)) * HEIGHT + u32(y)) * WIDTH + u32(x));
}

fn multiply(k: u32, row: u32, column: u32) {
    let w = w_tile[k * RQ + row];
    let x = x_tile[k * CQ + (column ^ (k & SWIZZLE))];
    acc[0] = fma(vec4<f32>(w.x), x, acc[0]);
    acc[1] = fma(vec4<f32>(w.y), x, acc[1]);
    acc[2] = fma(vec4<f32>(w.z), x, acc[2]);
    acc[3] = fma(vec4<f32>(w.w), x, acc[3]);
}

fn group_main(group: u32, lane: u32) {
    let n0 = group % TILES_N * TN;
    let j0 = group / TILES_N % TILES_J * TJ;
    let outer = group / (TILES_N * TILES_J);   // batch * GROUPS_X + group of rows
    let first = outer % GROUPS_X * N;
    let row = lane / CQ;
    let column = lane % CQ;
    x_start = outer / GROUPS_X * X_BATCH + outer % GROUPS_X * X_GROUP;
#if CODEBOOK
#if LEVELS
    for (var i = lane; i < ENTRIES; i += WORKGROUP_SIZE) { book[i] = level(i); }
#else
    for (var i = lane; i < ENTRIES; i += WORKGROUP_SIZE) { book[i] = table_at(min(i, TABLE_SIZE - 1u)); }
#end
    workgroupBarrier();
#end
    var total = mat4x4<f32>();
    for (var k0 = 0u; k0 < K; k0 += STEP) {
        for (var t = lane; t < RQ * STEP / PER; t += WORKGROUP_SIZE) { unpack(first, n0, k0, t); }
        for (var t = lane; t < CQ * STEP; t += WORKGROUP_SIZE) {
            let k = select(t / CQ, t % STEP, X_K_FAST);
            let q = select(t % CQ, t / STEP, X_K_FAST);
            let j = j0 + q;
            x_tile[k * CQ + (q ^ (k & SWIZZLE))] = vec4<f32>(
                x_or_zero(k0 + k, j), x_or_zero(k0 + k, j + CQ), x_or_zero(k0 + k, j + 2u * CQ), x_or_zero(k0 + k, j + 3u * CQ));
        }
        workgroupBarrier();
        for (var k = 0u; k < STEP; k += 4u) {
            multiply(k, row, column);
            multiply(k + 1u, row, column);
            multiply(k + 2u, row, column);
            multiply(k + 3u, row, column);
        }
        if (k0 / STEP % 8u == 7u) {
            total += acc;
            acc = mat4x4<f32>();
        }
        workgroupBarrier();
    }
    total += acc;
    for (var e = 0u; e < 16u; e++) {
        var own = total[0];
        if (e >= 4u) { own = total[1]; }
        if (e >= 8u) { own = total[2]; }
        if (e >= 12u) { own = total[3]; }
#if TOGETHER
        let n = n0 + 4u * row + e / 4u;
#else
        let n = n0 + row + e / 4u * RQ;
#end
        let j = j0 + column + e % 4u * CQ;
        if (n < N && j < J) {
            let i = outer * Y_OUTER + n * Y_ROW + j * Y_COL;
            var v = ALPHA * own[e % 4u];
            if (HAS_C) { v += BETA * c_at(c_index(i)); }
            y_set(i, v);
        }
    }
}
