// Rows of x times rows of w of their experts, + bias. TEAM invocations share ROWS rows of w: each reads PER elements of these at a time.
// TJ = 1: y[t, n] = the sum over SUMS r of t of that product times the share of r, where there are shares. TJ > 1: the rows lie by expert; with FIRST the
// k-th by expert reads x[r / SHARED] and writes y[k], else it reads x[k] and writes y[r], where r is its number among all.
// GATING: y[.., n] = gated(gate, up), two rows of w, in turn (1) or a half apart (2).
// Expects: x ([.., K]), chosen (an expert for each r) or places (as group_experts.wgsl has them), shares? (of each r), what expert_weight.wgsl does, bias?
// ([EXPERTS, N]), y; EXPERTS, SUMS, SHARED (r that have one x), PER: 128 / BITS where rows of codes are read by vectors of words (each within a block of
// scales where WHOLE, else each word), 4 where those of floats are read by vectors, or 1; with GATING what gated.wgsl does. Source: MoE and QMoE of ONNX
// Runtime.
#include expert_weight.wgsl
#if GATING
#include gated.wgsl
#end
#let each = ROWS // 2 if GATING else ROWS
const OUT: u32 = $(N // 2 if GATING else N)u;
const TEAMS: u32 = WORKGROUP_SIZE / TEAM;
const ITEMS: u32 = K / PER;
var<workgroup> parts: array<vec4<f32>, WORKGROUP_SIZE>;

fn team_sums(v: vec4<f32>, lane: u32) -> vec4<f32> {
    workgroupBarrier();
    parts[lane] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane % TEAM < s) { parts[lane] += parts[lane + s]; }
    }
    workgroupBarrier();
    return parts[lane - lane % TEAM];
}

fn group_main(group: u32, lane: u32) {
    let blocks = (OUT + $(each)u * TEAMS - 1u) / ($(each)u * TEAMS);
    let first = (group % blocks * TEAMS + lane / TEAM) * $(each)u;
    let tile = group / blocks;
#if TJ > 1
#include expert_rows.wgsl
#for c in TJ
    let place$c = min(begin + $(c)u, end - 1u);
    let r$c = u32(places_at(EXPERTS + 1u + place$c));
#if FIRST
    let x_row$c = r$c / SHARED * K;
    let y_row$c = place$c * OUT;
#else
    let x_row$c = place$c * K;
    let y_row$c = r$c * OUT;
#end
#end
#else
    let y_row0 = tile * OUT;
#end
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
#end
#for s in ROWS * TJ
    var sum$s = 0.0;
#end
    for (var item = lane % TEAM; item < SUMS * ITEMS; item += TEAM) {
        let k = item % max(ITEMS, 1u) * PER;
#if TJ > 1
#for c in TJ
        let at$c = x_row$c + k;
#end
        let share = 1.0;
#else
        let r = tile * SUMS + item / max(ITEMS, 1u);
        let e = u32(clamp(chosen_at(r), 0, i32(EXPERTS) - 1));
        let at0 = r / SHARED * K + k;
#if HAS_SHARES
        let share = shares_at(r);
#else
        let share = 1.0;
#end
#end
#if PER > 4
#for i in ROWS
        let w$i = w_word4(((e * N + n$i) * K + k) / PER);
#end
#if WHOLE
#for i in ROWS
        let zero$i = zero_of(e, n$i, k);
#end
#for s in ROWS * TJ
        var own$s = 0.0;
#end
#end
#for j in 4
        {
#if not WHOLE
#for i in ROWS
            let zero$i = zero_of(e, n$i, k + $(j * PER // 4)u);
#end
#for s in ROWS * TJ
            var own$s = 0.0;
#end
#end
#for q in 8 // BITS
            {
#for c in TJ
                let x$c = x_at4(at$c / 4u + $(j * (8 // BITS) + q)u);
#end
#for i in ROWS
                let v$i = four_codes(w$i[$j] >> $(4 * BITS * q)u) - zero$i;
#for c in TJ
                own$(i * TJ + c) += dot(v$i, x$c);
#end
#end
            }
#end
#if not WHOLE
#for i in ROWS
            let scale$i = share * scale_of(e, n$i, k + $(j * PER // 4)u);
#for c in TJ
            sum$(i * TJ + c) = fma(scale$i, own$(i * TJ + c), sum$(i * TJ + c));
#end
#end
#end
        }
#end
#if WHOLE
#for i in ROWS
        let scale$i = share * scale_of(e, n$i, k);
#for c in TJ
        sum$(i * TJ + c) = fma(scale$i, own$(i * TJ + c), sum$(i * TJ + c));
#end
#end
#end
#end
#if PER == 4
#for c in TJ
        let x$c = x_at4(at$c / 4u);
#end
#for i in ROWS
        let w$i = w_at4(((e * N + n$i) * K + k) / 4u);
#for c in TJ
        sum$(i * TJ + c) = fma(share, dot(w$i, x$c), sum$(i * TJ + c));
#end
#end
#end
#if PER == 1
#for i in ROWS
        let w$i = share * weight(e, n$i, k);
#for c in TJ
        sum$(i * TJ + c) = fma(x_at(at$c), w$i, sum$(i * TJ + c));
#end
#end
#end
    }
#for g in ROWS * TJ // 4
    let total$g = team_sums(vec4<f32>(sum$(4 * g), sum$(4 * g + 1), sum$(4 * g + 2), sum$(4 * g + 3)), lane);
#end
#for s in ROWS * TJ
    sum$s = total$(s // 4)[$(s % 4)];
#end
#if HAS_BIAS
#if TJ > 1
#for i in ROWS
    let bias$i = bias_at(e * N + n$i);
#for c in TJ
    sum$(i * TJ + c) += bias$i;
#end
#end
#else
    for (var s = 0u; s < SUMS; s++) {
        let r = tile * SUMS + s;
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
#end
    if (lane % TEAM != 0u) { return; }
#for o in each
    if (first + $(o)u < OUT) {
#for c in TJ
#if c
        if (begin + $(c)u < end)
#end
        {
#if GATING == 1
            y_set(y_row$c + first + $(o)u, gated(sum$(2 * o * TJ + c), sum$((2 * o + 1) * TJ + c)));
#end
#if GATING == 2
            y_set(y_row$c + first + $(o)u, gated(sum$(o * TJ + c), sum$((o + each) * TJ + c)));
#end
#if not GATING
            y_set(y_row$c + first + $(o)u, sum$(o * TJ + c));
#end
        }
#end
    }
#end
}
