// y = x / sqrt(mean x^2 + EPSILON) * gamma of each token, and its scores = w y + c: a row of w is an expert's. A workgroup has a token and an expert; each adds up
// the squares for itself, and stores a part of y. Elements of y lie as the lanes of
// expert_matvec.wgsl read them, LAID_OUT at a time.
// Expects: x, gamma, w ([EXPERTS, K]; vectors), c?, y, scores; K EXPERTS LAID_OUT EPSILON SUBGROUPS, BITS: 0, or of a code in w, whose words of PER codes have
// one scale each; then what expert_weight.wgsl does, of one expert with N = EXPERTS rows.
// Source: RMS normalization, Zhang and Sennrich, 2019; MoE and QMoE of ONNX Runtime.
#if BITS
#include expert_weight.wgsl
#end
const K4: u32 = K / 4u;
const OUTPUTS: u32 = 2u;
const SHARE: u32 = (K + EXPERTS - 1u) / EXPERTS;
#if SUBGROUPS
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
#else
const PARTS: u32 = WORKGROUP_SIZE;
#end
var<workgroup> sums: array<f32, PARTS * OUTPUTS>;

fn group_main(group: u32, lane: u32) {
    let token = group / EXPERTS;
    let e = group % EXPERTS;
    var sum0_0 = 0.0;
    var sum1_0 = 0.0;
#if BITS
    for (var i = lane; i < K / PER; i += WORKGROUP_SIZE) {
        let word = w_word(e * (K / PER) + i);
        let factor = scale_of(0u, e, i * PER);
        let zero = zero_of(0u, e, i * PER);
#for q in 8 // BITS
        let at$q = i * $(PER // 4)u + $(q)u;
        let v$q = x_at4(token * K4 + at$q);
        sum0_0 = fma(factor, dot(v$q * gamma_at4(at$q), four_codes(word >> $(4 * BITS * q)u) - zero), sum0_0);
        sum1_0 += dot(v$q, v$q);
#end
    }
#else
    for (var i = lane; i < K4; i += WORKGROUP_SIZE) {
        let v = x_at4(token * K4 + i);
        sum0_0 += dot(v * gamma_at4(i), w_at4(e * K4 + i));
        sum1_0 += dot(v, v);
    }
#end
#let SUMS = 2
#let COLS = 1
#include lane_sums.wgsl
    var score = 0.0;
    var squares = 0.0;
    for (var part = 0u; part < parts; part++) {
        score += sums[part * OUTPUTS];
        squares += sums[part * OUTPUTS + 1u];
    }
    let factor = 1.0 / sqrt(squares / f32(K) + EPSILON);
    if (lane == 0u) { scores_set(group, fma(score, factor, c_at(e))); }
    for (var n = e * SHARE + lane; n < min((e + 1u) * SHARE, K); n += WORKGROUP_SIZE) {
        let v = x_at(token * K + n) * factor * gamma_at(n);
        y_set(token * K + (n % LAID_OUT / 4u * (K / LAID_OUT) + n / LAID_OUT) * 4u + n % 4u, v);
    }
}
