// y = the weighted mean of values of each query, of the parts that attention_split.wgsl gives. Grid: heads, batches, tokens.
// Expects: sums, tops, sink?, lengths? (as attention_split.wgsl writes them, a score for each head, tokens less one of each batch), y (vectors); D4 HEADS
// SPLITS KEYS SK SQ (tokens) Y_B Y_H Y_S (in vectors), BEFORE CAUSAL FIRST LENGTHS WINDOW SINK as attention.wgsl, EMPTY_IS_ZERO.
#default CODES = 0
#if CODES
// The sums are of codes of so many CODES bits (include/cache_codes.wgsl); their scales are applied here. GROUP: heads that share keys.
#end
#include cache_codes.wgsl
#include seen_parts.wgsl
const LANES: u32 = WORKGROUP_SIZE;
const ROWS: u32 = LANES / D4;

var<workgroup> found: array<f32, LANES>;
var<workgroup> joined: array<vec4<f32>, LANES>;

fn power(x: f32) -> f32 { return exp2(x * 1.44269504); }

fn grid_main(group: vec3<u32>, lane: u32) {
#if LENGTHS
#if FIRST
    let before = 0u;
#else
    let before = u32(max(lengths_at(group.y) + 1, i32(SQ))) - SQ;
#end
#else
    let before = BEFORE;
#end
    let end = end_part(before) + (group.x >> 16u);     // + 0: lavapipe compiles anew in each dispatch what a uniform alone bounds, and keeps it all
    let base = ((group.y * SQ + group.z) * HEADS + group.x) * SPLITS;
    var top = -3.4028234663852886e38;
    for (var s = lane; s < end; s += LANES) { top = max(top, tops_at(2u * (base + s))); }
    found[lane] = top;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { found[lane] = max(found[lane], found[lane + half]); }
    }
    workgroupBarrier();
    top = found[0];
#if SINK == 1
    let sink = sink_at(group.x);
    top = max(top, sink);
#end
#if SINK == 2
    let sink = 0.0;
    top = max(top, sink);
#end
    var sum = vec4<f32>();
    var total = 0.0;
    for (var from_s = 0u; from_s < end; from_s += LANES) {
        var share = 0.0;
        if (from_s + lane < end) {
            share = power(tops_at(2u * (base + from_s + lane)) - top);
            total = fma(share, tops_at(2u * (base + from_s + lane) + 1u), total);
        }
        workgroupBarrier();
        found[lane] = share;
        workgroupBarrier();
        if (lane < ROWS * D4) {
            let last = min(LANES, end - from_s) - 1u;
            for (var s = lane / D4; s <= last; s += 8u * ROWS) {        // eight loads under way
#for n in 8
                let at$n = min(s + $(n)u * ROWS, last);
                let part$n = sums_at4((base + from_s + at$n) * D4 + lane % D4);
#end
#for n in 8
                if (s + $(n)u * ROWS <= last) { sum = fma(vec4<f32>(found[at$n]), part$n, sum); }
#end
            }
        }
    }
    joined[lane] = sum;
    workgroupBarrier();
    found[lane] = total;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { found[lane] += found[lane + half]; }
    }
    workgroupBarrier();
    if (lane >= D4) { return; }
    var whole = found[0];
    sum = vec4<f32>();
    for (var r = 0u; r < ROWS; r++) { sum += joined[r * D4 + lane]; }
#if SINK
    whole += power(sink - top);
#end
#if EMPTY_IS_ZERO
    let share = select(1.0 / whole, 0.0, whole == 0.0);
#else
    let share = 1.0 / whole;
#end
#if CODES
    sum *= scales_of_four(2u, group.x / GROUP, lane);
#end
    y_set4(group.y * Y_B + group.x * Y_H + group.z * Y_S + lane, sum * share);
}
