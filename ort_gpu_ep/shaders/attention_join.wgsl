// y = the weighted mean of values of each head, of the parts that attention_split.wgsl gives. Grid: heads, batches.
// Expects: sums, tops, sink? (as attention_split.wgsl writes them, and a score for each head), y (vectors); D4 HEADS SPLITS Y_B Y_H (in
// vectors), SINK as attention.wgsl, EMPTY_IS_ZERO.
#default CODES = 0
#if CODES
// The sums are of codes of so many CODES bits (include/cache_codes.wgsl); their scales are applied here. GROUP: heads that share keys.
#end
#include cache_codes.wgsl
const LANES: u32 = WORKGROUP_SIZE;
const ROWS: u32 = LANES / D4;

var<workgroup> highest: array<f32, LANES>;
var<workgroup> totals: array<f32, ROWS>;
var<workgroup> joined: array<vec4<f32>, LANES>;

fn power(x: f32) -> f32 { return exp2(x * 1.44269504); }

fn grid_main(group: vec3<u32>, lane: u32) {
    let count = SPLITS + (lane >> 16u);     // + 0: lavapipe compiles anew in each dispatch what a uniform alone bounds, and keeps it all
    let base = (group.y * HEADS + group.x) * SPLITS;
    var top = -3.4028234663852886e38;
    for (var s = lane; s < count; s += LANES) { top = max(top, tops_at(2u * (base + s))); }
    highest[lane] = top;
    workgroupBarrier();
    for (var i = 0u; i < min(LANES, count); i++) { top = max(top, highest[i]); }
#if SINK == 1
    let sink = sink_at(group.x);
    top = max(top, sink);
#end
#if SINK == 2
    let sink = 0.0;
    top = max(top, sink);
#end
    let row = lane / D4;
    var sum = vec4<f32>();
    var total = 0.0;
    for (var s = row; s < count && row < ROWS; s += ROWS) {
        let powers = tops_at(2u * (base + s) + 1u);
        if (powers > 0.0) {
            let share = power(tops_at(2u * (base + s)) - top);
            total = fma(share, powers, total);
            sum = fma(vec4<f32>(share), sums_at4((base + s) * D4 + lane % D4), sum);
        }
    }
    joined[lane] = sum;
    if (row < ROWS && lane % D4 == 0u) { totals[row] = total; }
    workgroupBarrier();
    if (lane >= D4) { return; }
    var whole = 0.0;
    sum = vec4<f32>();
    for (var r = 0u; r < ROWS; r++) {
        whole += totals[r];
        sum += joined[r * D4 + lane];
    }
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
    y_set4(group.y * Y_B + group.x * Y_H + lane, sum * share);
}
