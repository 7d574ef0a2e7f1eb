// y[t, n] = the sum over SUMS r of t of (x[row of r] . w[expert of r, n] + bias) times the share of r, where there are shares. GATING: y[t, n] = gated(gate,
// up), two rows of w, in turn (1) or a half apart (2). TEAM invocations share ROWS rows of w: each reads PER elements of x once for all of these rows.
// Expects: x ([.., K]), chosen (an expert for each r), shares? (of each r), what expert_weight.wgsl does, bias? ([EXPERTS, N]), y; EXPERTS, SUMS, SHARED (r
// that have one x), PER: 128 / BITS where rows of codes are read by vectors of words (each within a block of scales where WHOLE, else each word), 4 where
// those of floats are read by vectors, or 1; with GATING what gated.wgsl does. Source: MoE and QMoE of ONNX Runtime.
#include expert_weight.wgsl
#include team_sum.wgsl
#if GATING
#include gated.wgsl
#end
#let each = ROWS // 2 if GATING else ROWS
const OUT: u32 = $(N // 2 if GATING else N)u;
const TEAMS: u32 = WORKGROUP_SIZE / TEAM;
const ITEMS: u32 = K / PER;

fn group_main(group: u32, lane: u32) {
    let blocks = (OUT + $(each)u * TEAMS - 1u) / ($(each)u * TEAMS);
    let t = group / blocks;
    let first = (group % blocks * TEAMS + lane / TEAM) * $(each)u;
#for i in ROWS
#if GATING == 1
    let n$i = min(2u * first + $(i)u, N - 1u);
#end
#if GATING == 2
    let n$i = min(first + $(i % each + i // each * (N // 2))u, N - 1u);
#end
#if not GATING
    let n$i = min(first + $(i)u, N - 1u);
#end
    var sum$i = 0.0;
#end
    for (var item = lane % TEAM; item < SUMS * ITEMS; item += TEAM) {
        let r = t * SUMS + item / max(ITEMS, 1u);
        let k = item % max(ITEMS, 1u) * PER;
        let e = u32(clamp(chosen_at(r), 0, i32(EXPERTS) - 1));
        let at = r / SHARED * K + k;
#if HAS_SHARES
        let share = shares_at(r);
#else
        let share = 1.0;
#end
#if PER > 4
#for i in ROWS
        let w$i = w_word4(((e * N + n$i) * K + k) / PER);
#end
#for q in PER // 4
        let x$q = x_at4(at / 4u + $(q)u);
#end
#for i in ROWS
        {
            var part = 0.0;
#for j in 4
            {
#if WHOLE
                let zero = zero_of(e, n$i, k);
#else
                let zero = zero_of(e, n$i, k + $(j * PER // 4)u);
#end
                let word = w$i[$j];
                var own = 0.0;
#for q in 8 // BITS
                own += dot(four_codes(word >> $(4 * BITS * q)u) - zero, x$(j * (8 // BITS) + q));
#end
#if WHOLE
                part += own;
#else
                part = fma(own, scale_of(e, n$i, k + $(j * PER // 4)u), part);
#end
            }
#end
#if WHOLE
            part *= scale_of(e, n$i, k);
#end
            sum$i = fma(share, part, sum$i);
        }
#end
#end
#if PER == 4
        let x = x_at4(at / 4u);
#for i in ROWS
        sum$i = fma(share, dot(w_at4(((e * N + n$i) * K + k) / 4u), x), sum$i);
#end
#end
#if PER == 1
        let x = share * x_at(at);
#for i in ROWS
        sum$i = fma(x, weight(e, n$i, k), sum$i);
#end
#end
    }
#for i in ROWS
    sum$i = team_sum(sum$i, lane);
#end
#if HAS_BIAS
    for (var s = 0u; s < SUMS; s++) {
        let r = t * SUMS + s;
        let row = u32(clamp(chosen_at(r), 0, i32(EXPERTS) - 1)) * N;
#if HAS_SHARES
        let share = shares_at(r);
#else
        let share = 1.0;
#end
#for i in ROWS
        sum$i = fma(share, bias_at(row + n$i), sum$i);
#end
    }
#end
    if (lane % TEAM == 0u) {
#for i in each
        if (first + $(i)u < OUT) {
#if GATING == 1
            y_set(t * OUT + first + $(i)u, gated(sum$(2 * i), sum$(2 * i + 1)));
#end
#if GATING == 2
            y_set(t * OUT + first + $(i)u, gated(sum$i, sum$(i + each)));
#end
#if not GATING
            y_set(t * OUT + first + $(i)u, sum$i);
#end
        }
#end
    }
}
