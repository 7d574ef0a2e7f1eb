// y[r, n] = x[row of r] . w[expert of r, n] + bias, for each chosen expert r of each token; or (SUMS > 1, or SHARED = 1) y[t, n], their sum by shares. TEAM
// invocations share an output; a workgroup has ROWS of them.
// Expects: x ([.., K]), chosen (an expert for each r), shares? (of each r), w ([EXPERTS, N, K], or codes of BITS), bias? ([EXPERTS, N]), scales? (BLOCKS
// of a row, each for BLOCK elements), zeros? (codes of ZERO_ROW bytes a row, of an expert where BLOCKS is 0: then there is a scale for a row), y; SUMS (of r
// for one of y), SHARED (r that have one x). Source: MoE and QMoE of ONNX Runtime.
const ROWS: u32 = WORKGROUP_SIZE / TEAM;
#include team_sum.wgsl

// Element k of a row of an expert.
fn weight(e: u32, n: u32, k: u32) -> f32 {
    let row = e * N + n;
#if BITS == 0
    return w_at(row * K + k);
#else
    let at = row * K + k;
    let code = (w_at(at / (8u / BITS)) >> (at % (8u / BITS) * BITS)) & ((1u << BITS) - 1u);
    var zero = 1u << (BITS - 1u);
#if BLOCKS
    let block = k / BLOCK;
    let scale = scales_at(row * BLOCKS + block);
#if HAS_ZEROS
    zero = (zeros_at(row * ZERO_ROW + block / (8u / BITS)) >> (block % (8u / BITS) * BITS)) & ((1u << BITS) - 1u);
#end
#else
    let scale = scales_at(row);
#if HAS_ZEROS
    zero = (zeros_at(e * ZERO_ROW + n / (8u / BITS)) >> (n % (8u / BITS) * BITS)) & ((1u << BITS) - 1u);
#end
#end
    return (f32(code) - f32(zero)) * scale;
#end
}

fn group_main(group: u32, lane: u32) {
    let blocks = (N + ROWS - 1u) / ROWS;
    let row = group / blocks;
    let place = group % blocks * ROWS + lane / TEAM;
    let n = min(place, N - 1u);
    var total = 0.0;
    for (var s = 0u; s < SUMS; s++) {
        let r = row * SUMS + s;
        let expert = u32(clamp(chosen_at(r), 0, i32(EXPERTS) - 1));
        let from_x = r / SHARED * K;
        var sum = 0.0;
        for (var k = lane % TEAM; k < K; k += TEAM) { sum = fma(x_at(from_x + k), weight(expert, n, k), sum); }
        sum = team_sum(sum, lane);
#if HAS_BIAS
        sum += bias_at(expert * N + n);
#end
#if HAS_SHARES
        total = fma(shares_at(r), sum, total);
#else
        total = sum;
#end
    }
    if (lane % TEAM == 0u && place < N) { y_set(row * N + place, total); }
}
