// y = the weighted mean of values of each query, of the parts that attention_split.wgsl gives. Grid: heads, batches, tokens.
// ROWS neighbouring parts are read at a time, each by D4 invocations, which bring LOADS of them together on their own: so that one barrier is enough,
// and no load waits for another. The first loads do not even wait for the tokens' number: what nobody has written is read, and left out.
// Expects: sums, tops, sink?, lengths? (as attention_split.wgsl writes them, a score for each head, tokens less one of each batch), y (vectors); D4 HEADS
// ROWS LOADS IS_LONG (whether there may be more parts than these), SPLITS KEYS SK SQ (tokens) Y_B Y_H Y_S (in vectors), BEFORE CAUSAL FIRST LENGTHS WINDOW
// SINK as attention.wgsl, EMPTY_IS_ZERO.
#default CODES = 0
#if CODES
// The sums are of codes of so many CODES bits (include/cache_codes.wgsl); their scales are applied here. GROUP: heads that share keys.
#end
#include cache_codes.wgsl
#include seen_parts.wgsl
const LOWEST: f32 = -3.4028234663852886e38;
const AT_ONCE: u32 = ROWS * LOADS;

var<workgroup> joined: array<vec4<f32>, WORKGROUP_SIZE>;
var<workgroup> tops_of_row: array<f32, ROWS>;
var<workgroup> totals_of_row: array<f32, ROWS>;

fn power(x: f32) -> f32 { return exp2(x * 1.44269504); }

fn grid_main(group: vec3<u32>, lane: u32) {
    let row = lane / D4;
    let base = ((group.y * SQ + group.z) * HEADS + group.x) * SPLITS;
#for n in LOADS
    let place$n = base + min(row + $(n)u * ROWS, SPLITS - 1u);
    var part$n = sums_at4(place$n * D4 + lane % D4);
    var top$n = tops_at(2u * place$n);
    var total$n = tops_at(2u * place$n + 1u);
#end
#if SINK == 1
    let sink = sink_at(group.x);
#end
#if SINK == 2
    let sink = 0.0;
#end
#if CODES
    let scales = scales_of_four(2u, group.x / GROUP, lane % D4);
#end
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
    var top = LOWEST;
    var total = 0.0;
    var sum = vec4<f32>();
    var first = row;
#if IS_LONG
    loop {
#end
        // Behind the end a part is as one without keys, whatever its memory holds.
        let old = top;
#for n in LOADS
        top$n = select(LOWEST, top$n, first + $(n)u * ROWS < end);
        top = max(top, top$n);
#end
        let factor = power(old - top);
        total *= factor;
        sum *= factor;
#for n in LOADS
        let has$n = first + $(n)u * ROWS < end;
        let share$n = power(top$n - top);
        total = fma(share$n, select(0.0, total$n, has$n), total);
        sum = fma(vec4<f32>(share$n), select(vec4<f32>(), part$n, has$n), sum);
#end
#if IS_LONG
        first += AT_ONCE;
        if (first - row >= end) { break; }
#for n in LOADS
        {
            let place = base + min(first + $(n)u * ROWS, end - 1u);
            part$n = sums_at4(place * D4 + lane % D4);
            top$n = tops_at(2u * place);
            total$n = tops_at(2u * place + 1u);
        }
#end
    }
#end
    joined[lane] = sum;
    if (lane % D4 == 0u) {
        tops_of_row[row] = top;
        totals_of_row[row] = total;
    }
    workgroupBarrier();
    if (lane >= D4) { return; }
#for r in ROWS - 1
    top = max(top, tops_of_row[$(r + 1)]);
#end
#if SINK
    top = max(top, sink);
    var whole = power(sink - top);
#else
    var whole = 0.0;
#end
    sum = vec4<f32>();
#for r in ROWS
    let share_of_row$r = power(tops_of_row[$r] - top);
    whole = fma(share_of_row$r, totals_of_row[$r], whole);
    sum = fma(vec4<f32>(share_of_row$r), joined[$(r)u * D4 + lane], sum);
#end
#if EMPTY_IS_ZERO
    let share = select(1.0 / whole, 0.0, whole == 0.0);
#else
    let share = 1.0 / whole;
#end
#if CODES
    sum *= scales;
#end
    y_set4(group.y * Y_B + group.x * Y_H + group.z * Y_S + lane, sum * share);
}
