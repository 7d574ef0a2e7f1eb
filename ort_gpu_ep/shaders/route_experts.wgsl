// Of each token the SLOTS experts with the largest scores, the first of equals before others: chosen[token, slot] is the expert, shares[token, slot] its
// part: softmax over the chosen ones (NORMALIZED), or over all; or its number in `weights`, of which the chosen ones make 1 where NORMALIZED. A workgroup
// per token.
// Expects: x ([tokens, EXPERTS]), weights? (likewise), chosen, shares; SLOTS TEAM (= WORKGROUP_SIZE). Source: MoE and QMoE of ONNX Runtime.
#include team_sum.wgsl

// Larger for larger scores, for NaN as for some number: so each token has SLOTS experts whatever its scores are.
fn place_of(score: f32) -> u32 {
    let bits = select(bitcast<u32>(score), 0u, score == 0.0);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

// How many experts go before this one.
fn rank_of(row: u32, e: u32) -> u32 {
    let own = place_of(x_at(row + e));
    var rank = 0u;
    for (var o = 0u; o < EXPERTS; o++) {
        let other = place_of(x_at(row + o));
        rank += select(0u, 1u, other > own || (other == own && o < e));
    }
    return rank;
}

fn part_of(at: u32, top: f32) -> f32 {
#if HAS_WEIGHTS
    return weights_at(at);
#else
    return exp_f32(x_at(at) - top);
#end
}

fn group_main(group: u32, lane: u32) {
    let row = group * EXPERTS;
    var top = x_at(row);
    for (var e = 1u; e < EXPERTS; e++) { top = max(top, x_at(row + e)); }
    var sum = 0.0;
#if NORMALIZED or not HAS_WEIGHTS
    for (var e = lane; e < EXPERTS; e += WORKGROUP_SIZE) {
#if NORMALIZED
        if (rank_of(row, e) < SLOTS) { sum += part_of(row + e, top); }
#else
        sum += part_of(row + e, top);
#end
    }
    sum = team_sum(sum, lane);
#else
    sum = 1.0;
#end
    for (var e = lane; e < EXPERTS; e += WORKGROUP_SIZE) {
        let rank = rank_of(row, e);
        if (rank < SLOTS) {
            chosen_set(group * SLOTS + rank, i32(e));
            shares_set(group * SLOTS + rank, part_of(row + e, top) / sum);
        }
    }
}
