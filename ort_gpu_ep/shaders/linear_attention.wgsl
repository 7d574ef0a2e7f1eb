// Of each token in turn: state = fade state + k (x) u, y = SCALE q^T state, with u = v, or (DELTA) beta (v - state^T k) for the faded state.
// A workgroup has COLUMNS columns of a head's state, in registers: PARTS invocations share a column, ROWS of its elements each, every PARTS-th.
// Grid: blocks of columns, heads of the state, batches.
// Expects: q, k, v, past?, decay?, beta?, y, present; LENGTH (tokens), DK, DV (rows and columns of a state), Q_HEADS, HEADS, SHARING (heads of q for
// one of the state), JOINED (heads of the state for one of q), DECAY (0 none, 1 of a head, 2 of a row), DELTA, BETAS (of a token), SCALE.
// Source: ONNX LinearAttention.
var<workgroup> parts: array<f32, COLUMNS * PARTS>;

// The sum over the invocations of a column.
fn joined(v: f32, lane: u32) -> f32 {
    workgroupBarrier();
    parts[lane] = v;
    workgroupBarrier();
    var sum = 0.0;
    for (var p = lane % COLUMNS; p < COLUMNS * PARTS; p += COLUMNS) { sum += parts[p]; }
    return sum;
}

fn grid_main(group: vec3<u32>, lane: u32) {
    let column = group.x * COLUMNS + lane % COLUMNS;
    let part = lane / COLUMNS;
    let j = min(column, DV - 1u);
    let h = group.y;
    let b = group.z;
    let state = (b * HEADS + h) * DK * DV + j;
#for r in ROWS
    let row$r = part + $(r)u * PARTS;
    let at$r = min(row$r, DK - 1u);
#if HAS_PAST
    var s$r = select(0.0, past_at(state + at$r * DV), row$r < DK);
#else
    var s$r = 0.0;
#end
#end
    for (var t = 0u; t < LENGTH; t++) {
        let token = b * LENGTH + t;
        let from_k = (token * HEADS + h) * DK;
#if DECAY == 1
        let fade = exp_f32(decay_at(token * HEADS + h));
#end
        var known = 0.0;
#for r in ROWS
        let k$r = select(0.0, k_at(from_k + at$r), row$r < DK);
#if DECAY == 1
        s$r *= fade;
#end
#if DECAY == 2
        s$r *= exp_f32(decay_at(from_k + at$r));
#end
        known = fma(s$r, k$r, known);
#end
        var u = v_at((token * HEADS + h) * DV + j);
#if DELTA
        u = beta_at(token * BETAS + h % BETAS) * (u - joined(known, lane));
#end
#for r in ROWS
        s$r = fma(k$r, u, s$r);
#end
        for (var n = 0u; n < SHARING; n++) {
            let from_q = (token * Q_HEADS + h / JOINED * SHARING + n) * DK;
            var sum = 0.0;
#for r in ROWS
            sum = fma(s$r, q_at(from_q + at$r) * SCALE, sum);
#end
            sum = joined(sum, lane);
            if (part == 0u && column < DV) { y_set((token * HEADS * SHARING + h * SHARING + n) * DV + column, sum); }
        }
    }
#for r in ROWS
    if (row$r < DK && column < DV) { present_set(state + at$r * DV, s$r); }
#end
}
