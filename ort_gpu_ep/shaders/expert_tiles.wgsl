// y[row, n] = x[row] . w[expert of row, n] + bias: of rows that lie by expert, tiles of TJ, each of one expert, times TN rows of w, which go through
// workgroup memory STEP elements at a time, while the loads of the next step are under way in registers. A lane owns 4 OWN x 4 sums: rows r + i TN / 4 OWN
// of w and columns c + j TJ / 4. With FIRST the k-th row by expert reads x[r / SHARED] and writes y[k]; else it reads x[k] and writes y[r], where r is its
// number among all.
// Expects: x ([.., K]), places (as group_experts.wgsl has them), what expert_weight.wgsl does, bias? ([EXPERTS, N]), y; EXPERTS, TILES_N, PER: elements of
// a row of w and x that are read at a time, 1 or 4.
#include expert_weight.wgsl
const RQ: u32 = TN / 4u;
const CQ: u32 = TJ / 4u;
const SWIZZLE: u32 = min(CQ, 8u) - 1u;   // spreads stores along k over the memory banks
#let lanes = TN // OWN * TJ // 16
#let w_loads = (TN * STEP // 16 + lanes - 1) // lanes
#let x_loads = (TJ * STEP // 16 + lanes - 1) // lanes
var<workgroup> w_tile: array<vec4<f32>, RQ * STEP>;
var<workgroup> x_tile: array<vec4<f32>, CQ * STEP>;

// Four elements of a row of w, as they lie in memory; zero behind its end.
#if BITS and PER == 4
alias raw_t = u32;

fn raw_weights(e: u32, n: u32, k: u32) -> u32 {
    let at = (e * N + n) * K + k;
    return w_word(at / (32u / BITS)) >> (at % (32u / BITS) * BITS);
}
#else
alias raw_t = vec4<f32>;

fn raw_weights(e: u32, n: u32, k: u32) -> vec4<f32> {
#if PER == 4
    return w_at4(((e * N + n) * K + k) / 4u);
#else
    var v = vec4<f32>(weight(e, n, k), 0.0, 0.0, 0.0);
    if (k + 1u < K) { v.y = weight(e, n, k + 1u); }
    if (k + 2u < K) { v.z = weight(e, n, k + 2u); }
    if (k + 3u < K) { v.w = weight(e, n, k + 3u); }
    return v;
#end
}
#end

// Four elements of the row of x that is the `place`th by expert; zero behind its end, and from `end` on.
fn x4(place: u32, end: u32, k: u32) -> vec4<f32> {
    if (place >= end || k >= K) { return vec4<f32>(); }
#if FIRST
    let at = u32(places_at(EXPERTS + 1u + place)) / SHARED * K + k;
#else
    let at = place * K + k;
#end
#if PER == 4
    return x_at4(at / 4u);
#else
    var v = vec4<f32>(x_at(at), 0.0, 0.0, 0.0);
    if (k + 1u < K) { v.y = x_at(at + 1u); }
    if (k + 2u < K) { v.z = x_at(at + 2u); }
    if (k + 3u < K) { v.w = x_at(at + 3u); }
    return v;
#end
}

fn group_main(group: u32, lane: u32) {
    let first_row = group % TILES_N * TN;
    let tile = group / TILES_N;
#include expert_rows.wgsl
    let row = lane / CQ;
    let column = lane % CQ;
#for i in 4
#for j in w_loads
    var w$(j)_$i = raw_t();
#if BITS and PER == 4
    var scale$(j)_$i = 0.0;
    var zero$(j)_$i = 0.0;
#end
#end
#for j in x_loads
    var x$(j)_$i = vec4<f32>();
#end
#end
#for i in 4 * OWN
    var sum$i = vec4<f32>();
#end
    var k0 = 0u;
#include expert_loads.wgsl
    while (k0 < K) {
#for j in w_loads
        {
            let t = lane + $(j)u * WORKGROUP_SIZE;
            let at = t / RQ * 4u * RQ + t % RQ;
#for i in 4
#if BITS and PER == 4
            let v$i = (four_codes(w$(j)_$i) - zero$(j)_$i) * scale$(j)_$i;
#else
            let v$i = w$(j)_$i;
#end
#end
#if TN * STEP // 16 % lanes
            if (t < RQ * STEP / 4u)
#end
            {
#for i in 4
                w_tile[at + $(i)u * RQ] = vec4<f32>(v0[$i], v1[$i], v2[$i], v3[$i]);
#end
            }
        }
#end
#for j in x_loads
        {
            let t = lane + $(j)u * WORKGROUP_SIZE;
            let k = t % $(STEP // 4)u;
            let at = 4u * k * CQ + ((t / $(STEP // 4)u) ^ (k & SWIZZLE));
#if TJ * STEP // 16 % lanes
            if (t < CQ * STEP / 4u)
#end
            {
#for i in 4
                x_tile[at + $(i)u * CQ] = vec4<f32>(x$(j)_0[$i], x$(j)_1[$i], x$(j)_2[$i], x$(j)_3[$i]);
#end
            }
        }
#end
        workgroupBarrier();
        k0 += STEP;
        if (k0 < K) {
#include expert_loads.wgsl
        }
        for (var k = 0u; k < STEP; k += 4u) {
            let at = column ^ ((k / 4u) & SWIZZLE);
#for d in 4
            {
                let x = x_tile[(k + $(d)u) * CQ + at];
#for o in OWN
                let w$o = w_tile[(k + $(d)u) * RQ + row + $(o)u * (RQ / OWN)];
#for i in 4
                sum$(4 * o + i) = fma(vec4<f32>(w$o[$i]), x, sum$(4 * o + i));
#end
#end
            }
#end
        }
        workgroupBarrier();
    }
#for j in 4
    {
        let at = begin + column + $(j)u * CQ;
        if (at < end) {
#if FIRST
            let to = at;
#else
            let to = u32(places_at(EXPERTS + 1u + at));
#end
#for o in OWN
#for i in 4
            {
                let n = first_row + row + $(o)u * (RQ / OWN) + $(i)u * RQ;
                if (n < N) {
                    var v = sum$(4 * o + i)[$j];
#if HAS_BIAS
                    v += bias_at(e * N + n);
#end
                    y_set(to * N + n, v);
                }
            }
#end
#end
        }
    }
#end
}
