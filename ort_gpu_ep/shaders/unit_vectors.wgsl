// y[n, m] = ALPHA * sum over k of x[n, k] * w[m, k] + BETA * c[m] for at most 16 vectors x of float16 and packed weights, on matrix units, in
// fragments of FN rows of FM columns and FK of k. A workgroup has TM columns and all vectors, and each subgroup, of GK, a part of each step's k: so a fragment
// of x meets TM columns, and the matrix units' loads, which bound this kernel, are the fewest. At the end the sums of each subgroup are added up.
// Weights are decoded to float16 two by two: a code in the low bits of 1024 is a float16, and nothing is rounded before the product with its scale.
// A step brings TK of k into workgroup memory while the loads of AHEAD steps behind it are under way in registers: with one a step waits for memory. A second
// tile took longer on an H200, since workgroups share 48 KiB of a compute unit, and loads that are not under a condition, since some come for nothing.
// Expects: x (vectors of eight), w (vectors; a word has the codes of eight columns at one k, WORDS words a row of them, repack.wgsl), scales (vectors of eight
// columns, times a power of two for each), w_scales [M] (these powers), zeros? (words of the zero points of eight columns), c?, y;
// N (vectors of this run) M K; BLOCK (codes that share a scale) BLOCKS, ZERO (without zeros); ALPHA BETA.
// SPLIT > 1: k is cut into parts of PER, each of another workgroup (its y); the one of a tile that arrives last adds the parts up, in their order.
// With it also parts (vectors) and arrived (atomics, zero).
#include fragments.wgsl
#let ROWS = 16
#let row = TK // 8 + 1
#let x_loads = (ROWS * TK // 8 + WORKGROUP_SIZE - 1) // WORKGROUP_SIZE
#let w_loads = TM * TK // 64 // WORKGROUP_SIZE
#let size = (ROWS + TM) * row
#let stage_row = TM // 4 + 2
#let staged = GK * ROWS * stage_row
#let stores = ROWS * TM // 4 // WORKGROUP_SIZE
var<workgroup> tile: array<vec4<u32>, $(size if size > staged else staged)>;
#if SPLIT > 1
var<workgroup> place: u32;
#end
const WORDS4: u32 = WORDS / 4u;

// Four columns of a k and of the next one: the former in the low halves.
fn lower(a: u32, b: u32) -> u32 { return (a & 0xffffu) | (b << 16u); }
fn upper(a: u32, b: u32) -> u32 { return (a >> 16u) | (b & 0xffff0000u); }

fn halves(word: u32) -> vec2<f16> { return bitcast<vec2<f16>>(word); }

// The weights whose codes are at bit `at` of both halves of a word, which are 1024 more as float16; so is `zero`.
fn weights(word: u32, at: u32, zero: vec2<f16>, scale: f16) -> u32 {
    let v = (halves(((word >> at) & 0x000f000fu) | 0x64006400u) - zero) * scale;
    return bitcast<u32>(v);
}

fn grid_main(group: vec3<u32>, lane: u32) {
    let m_first = group.x * TM;
#if SPLIT > 1
    let k_first = group.y * PER;
    let k_end = min(K, k_first + PER);
#else
    let k_first = 0u;
    let k_end = K;
#end
#for i in x_loads
    let xe$i = lane + $(i * WORKGROUP_SIZE)u;
    let xk$i = xe$i % $(TK // 8)u * 8u;
    let xp$i = (min(xe$i / $(TK // 8)u, N - 1u) * K + xk$i) / 8u;
    let xt$i = xe$i / $(TK // 8)u * $(row)u + xk$i / 8u;
#end
#for i in w_loads
    let we$i = lane + $(i * WORKGROUP_SIZE)u;
    let row$i = min(m_first / 8u + we$i / $(TK // 8)u, (M - 1u) / 8u);
    let wk$i = we$i % $(TK // 8)u * 8u;
    let wt$i = (16u + we$i / $(TK // 8)u * 8u) * $(row)u + wk$i / 8u;
#end
#for t in AHEAD
#for i in x_loads
    var x$(t)_$i = vec4<u32>();
#end
#for i in w_loads
    var v$(t)_$i = vec4<u32>();
    var w$(t)_$i = vec4<u32>();
    var s$(t)_$i = vec4<u32>();
    var z$(t)_$i = 0u;
#end
    {
        let next = k_first + $(t)u * TK;
#include unit_vector_loads.wgsl
    }
#end
#for i in ROWS // FN
#for j in TM // FM
    var sum$(i)_$j = sums_t();
#end
#end
    for (var k = k_first; k < k_end; k += $(AHEAD)u * TK) {
#for t in AHEAD
        if (k + $(t)u * TK < k_end) {
        workgroupBarrier();
#for i in x_loads
#if ROWS * TK // 8 % WORKGROUP_SIZE
        if (xe$i < $(ROWS * TK // 8)u) { tile[xt$i] = x$(t)_$i; }
#else
        tile[xt$i] = x$(t)_$i;
#end
#end
#for i in w_loads
#for half in 2
#for p in 2
#if half == 0
        let c$(i)_$(half)_$p = lower(v$(t)_$i[$(2 * p)], v$(t)_$i[$(2 * p + 1)]);
        let e$(i)_$(half)_$p = lower(w$(t)_$i[$(2 * p)], w$(t)_$i[$(2 * p + 1)]);
#else
        let c$(i)_$(half)_$p = upper(v$(t)_$i[$(2 * p)], v$(t)_$i[$(2 * p + 1)]);
        let e$(i)_$(half)_$p = upper(w$(t)_$i[$(2 * p)], w$(t)_$i[$(2 * p + 1)]);
#end
#end
#for c in 4
#let r = 4 * half + c
        {
            let scale = halves(s$(t)_$i[$(r // 2)])[$(r % 2)];
#if HAS_ZEROS
            let zero = vec2<f16>(f16(1024.0 + f32(extractBits(z$(t)_$i, $(4 * r)u, 4u))));
#else
            let zero = vec2<f16>(f16(1024.0 + ZERO));
#end
            tile[wt$i + $(r * row)u] = vec4<u32>(
                weights(c$(i)_$(half)_0, $(4 * c)u, zero, scale), weights(c$(i)_$(half)_1, $(4 * c)u, zero, scale),
                weights(e$(i)_$(half)_0, $(4 * c)u, zero, scale), weights(e$(i)_$(half)_1, $(4 * c)u, zero, scale));
        }
#end
#end
#end
        workgroupBarrier();
        if (k + $(t + AHEAD)u * TK < k_end) {
            let next = k + $(t + AHEAD)u * TK;
#include unit_vector_loads.wgsl
        }
#for q in TK // FK // GK
        {
            let own = (subgroup_id + $(q * GK)u) * $(FK // 8)u;
#for i in ROWS // FN
            let a$i = subgroupMatrixLoad<left_t, row_major>(&tile, own + $(i * FN * row)u, $(row)u);
#end
#for j in TM // FM
            let b$j = subgroupMatrixLoad<right_t, col_major>(&tile, own + $((16 + j * FM) * row)u, $(row)u);
#for i in ROWS // FN
            sum$(i)_$j = subgroupMatrixMultiplyAccumulate(a$i, b$j, sum$(i)_$j);
#end
#end
        }
#end
        }
#end
    }
    workgroupBarrier();
#for i in ROWS // FN
#for j in TM // FM
    subgroupMatrixStore<row_major>(&tile, subgroup_id * $(ROWS * stage_row)u + $(i * FN * stage_row + j * FM // 4)u, sum$(i)_$j, $(stage_row)u);
#end
#end
    workgroupBarrier();
    // a lane has the same columns in every row that it stores
    let m = m_first + lane % $(TM // 4)u * 4u;
#for u in stores
    let line$u = (lane + $(u * WORKGROUP_SIZE)u) / $(TM // 4)u;
    var sum_of$u = vec4<f32>();
#for g in GK
    sum_of$u += bitcast<vec4<f32>>(tile[(line$u + $(g * ROWS)u) * $(stage_row)u + lane % $(TM // 4)u]);
#end
#end
#if SPLIT > 1
    let counter = group.x;
    let own_part = counter * $(SPLIT * stores)u;
#for u in stores
    parts[(own_part + group.y * $(stores)u + $(u)u) * WORKGROUP_SIZE + lane] = sum_of$u;
#end
#include last_arriving.wgsl
#for u in stores
    sum_of$u = vec4<f32>();
#end
#for p in SPLIT
#for u in stores
    let part$(p)_$u = parts[(own_part + $(p * stores + u)u) * WORKGROUP_SIZE + lane];
#end
#end
#for p in SPLIT
#for u in stores
    sum_of$u += part$(p)_$u;
#end
#end
#end
    if (m < M) {
        let powers = vec4<f32>(w_scales_at(m), w_scales_at(m + 1u), w_scales_at(m + 2u), w_scales_at(m + 3u));
        let back = ALPHA * bitcast<vec4<f32>>((vec4<u32>(254u) - (bitcast<vec4<u32>>(powers) >> vec4<u32>(23u))) << vec4<u32>(23u));
#for u in stores
        if (line$u < N) {
#if HAS_C
            y_set4((line$u * M + m) / 4u, fma(sum_of$u, back, BETA * c_at4(m / 4u)));
#else
            y_set4((line$u * M + m) / 4u, sum_of$u * back);
#end
        }
#end
    }
}
