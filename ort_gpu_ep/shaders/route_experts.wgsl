// Of each token the SLOTS experts with the largest scores, the first of equals before others: y[token, slot] is the expert, or (SHARES) its part: softmax
// over the chosen ones (NORMALIZED), or over all; or its number in `weights`, of which the chosen ones make 1 where NORMALIZED. One invocation per element.
// Expects: x ([tokens, EXPERTS]), weights? (likewise), y; SLOTS. Source: MoE and QMoE of ONNX Runtime.

// The expert behind `last` in that order; EXPERTS for `last`: the first.
fn following(row: u32, last: u32) -> u32 {
    let bound = x_at(row + min(last, EXPERTS - 1u));
    var best = 0.0;
    var found = EXPERTS;
    for (var e = 0u; e < EXPERTS; e++) {
        let score = x_at(row + e);
        let behind = last == EXPERTS || score < bound || (score == bound && e > last);
        if (behind && (found == EXPERTS || score > best)) {
            found = e;
            best = score;
        }
    }
    return found;
}

fn element(i: u32) -> y_t {
    let row = i / SLOTS * EXPERTS;
    let slot = i % SLOTS;
    var last = EXPERTS;
    var mine = 0u;
    var sum = 0.0;
    var top = 0.0;
    for (var s = 0u; s < SLOTS; s++) {
        last = min(following(row, last), EXPERTS - 1u);
        if (s == 0u) { top = x_at(row + last); }
        if (s == slot) { mine = last; }
#if HAS_WEIGHTS
        sum += weights_at(row + last);
#else
        sum += exp_f32(x_at(row + last) - top);
#end
    }
#if SHARES
#if HAS_WEIGHTS
    return select(weights_at(row + mine), weights_at(row + mine) / sum, NORMALIZED);
#else
#if NORMALIZED
    return exp_f32(x_at(row + mine) - top) / sum;
#else
    var all = 0.0;
    for (var e = 0u; e < EXPERTS; e++) { all += exp_f32(x_at(row + e) - top); }
    return exp_f32(x_at(row + mine) - top) / all;
#end
#end
#else
    return i32(mine);
#end
}
