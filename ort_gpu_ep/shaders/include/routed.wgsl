// The SLOTS experts of a token with the largest scores, the first of equals before others, in workgroup memory: `routed`; and the part of each: softmax over
// these (NORMALIZED), or over all; or its number in `weights`, of which they make 1 where NORMALIZED. Every lane of the workgroup calls `route`.
// Expects: scores, weights? ([tokens, EXPERTS]), SLOTS EXPERTS WORKGROUP_SIZE.
var<workgroup> places: array<u32, EXPERTS>;
var<workgroup> routed: array<u32, SLOTS>;

// Larger for larger scores, for NaN as for some number: so each token has SLOTS experts whatever its scores are.
fn place_of(score: f32) -> u32 {
    let bits = select(bitcast<u32>(score), 0u, score == 0.0);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn route(token: u32, lane: u32) {
    for (var e = lane; e < EXPERTS; e += WORKGROUP_SIZE) { places[e] = place_of(scores_at(token * EXPERTS + e)); }
    workgroupBarrier();
    for (var e = lane; e < EXPERTS; e += WORKGROUP_SIZE) {
        let own = places[e];
        var rank = 0u;
        for (var o = 0u; o < EXPERTS; o++) {
            let other = places[o];
            rank += select(0u, 1u, other > own || (other == own && o < e));
        }
        if (rank < SLOTS) { routed[rank] = e; }
    }
    workgroupBarrier();
}

fn part_of(at: u32, top: f32) -> f32 {
#if HAS_WEIGHTS
    return weights_at(at);
#else
    return exp_f32(scores_at(at) - top);
#end
}

fn part_of_slot(token: u32, slot: u32) -> f32 {
    let row = token * EXPERTS;
    let top = scores_at(row + routed[0]);
    let own = part_of(row + routed[slot], top);
#if HAS_WEIGHTS and not NORMALIZED
    return own;
#else
    var sum = 0.0;
#if NORMALIZED
    for (var s = 0u; s < SLOTS; s++) { sum += part_of(row + routed[s], top); }
#else
    for (var e = 0u; e < EXPERTS; e++) { sum += part_of(row + e, top); }
#end
    return own / sum;
#end
}
