// Products of the same COLS vectors with several packed matrices, in one dispatch: y[c, n] = factor[c] * sum over k of weight[n, k] * x[c, k] +
// bias, of each matrix. With NORM x is multiplied by gamma, and factor is 1 / sqrt(mean x^2 + EPSILON): an RMS normalization in front of them.
// It is taken off the sums, so no invocation waits for it. With WIDE 2 a workgroup has the rows of both matrices: the fused steps find
// the second one's product as `beside`. With WIDE 1 each matrix has workgroups and an output of its own.
// Expects what packed_matvec.wgsl says of x and of weights with scales of blocks, of the later matrices w1 scales1 zeros1 c1 y1 and so on;
// gamma (vectors); MATRICES WIDE NORM EPSILON, N_0 N_1 N_2 (rows).
// Source: RMS normalization, Zhang and Sennrich, 2019; gated units, Shazeer, GLU variants improve Transformer, 2020.
const WORDS4: u32 = WORDS / 4u;
const OUTPUTS: u32 = $((PER * WIDE + NORM) * COLS)u;
#if SUBGROUPS
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
#else
const PARTS: u32 = WORKGROUP_SIZE;
#end
var<workgroup> sums: array<f32, PARTS * OUTPUTS>;
#if WIDE == 2
var<private> beside: f32;
#end

fn words_of_0(i: u32) -> vec4<u32> { return w_word4(i); }
#if MATRICES > 1
fn words_of_1(i: u32) -> vec4<u32> { return w1_word4(i); }
#end
#if MATRICES > 2
fn words_of_2(i: u32) -> vec4<u32> { return w2_word4(i); }
#end

#include packed_codes.wgsl

fn group_main(whole: u32, lane: u32) {
#for MATRIX in MATRICES // WIDE
#let n = (MATRIX == 0) * N_0 + (MATRIX == 1) * N_1 + (MATRIX == 2) * N_2
#let start = (MATRIX > 0) * ((N_0 + PER - 1) // PER) + (MATRIX > 1) * ((N_1 + PER - 1) // PER)
    if (whole >= $(start)u && whole < $(start + (n + PER - 1) // PER)u) {
    let group = whole - $(start)u;
#include packed_sums.wgsl
    for (var i = lane; i < PER * COLS; i += WORKGROUP_SIZE) {
        let row = group * PER + i / COLS;
        if (row < $(n)u) {
            var v = 0.0;
            var factor = 0.0;
#if WIDE == 2
            beside = 0.0;
#end
            for (var part = 0u; part < parts; part++) {
                v += sums[part * OUTPUTS + i];
#if WIDE == 2
                beside += sums[part * OUTPUTS + PER * COLS + i];
#end
#if NORM
                factor += sums[part * OUTPUTS + $(PER * WIDE * COLS)u + i % COLS];
#end
            }
#if NORM
            factor = 1.0 / sqrt(factor / f32(K) + EPSILON);
#else
            factor = 1.0;
#end
#if MATRIX
            y$(MATRIX)_set(i % COLS * $(n)u + row, fma(v, factor, c$(MATRIX)_at(row)));
#else
#if WIDE == 2
            beside = fma(beside, factor, c1_at(row));
#end
            y_set(i % COLS * $(n)u + row, fma(v, factor, c_at(row)));
#end
        }
    }
    }
#end
}
