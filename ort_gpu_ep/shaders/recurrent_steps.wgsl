// A step of a recurrent layer by all workgroups together, and a dispatch for each step: a GRU whose reset comes first takes two, since its
// candidate waits for the resets of all units. A workgroup has COVERED hidden units of one direction, and of every RUNS * ROWS batch rows
// ROWS. A team of its lanes has one gate of UNITS of them: it reads a row of R together.
// Which step it is a workgroup counts for itself, in its word of `ticks`: 0 before the first run and after each.
// Expects: pre [rows, DIRECTIONS * GATES * H] (x * W^T), packed (what recurrent_weights.wgsl packs, R as it is: [DIRECTIONS, GATES, H, H];
//   by four if VECTORS), seq? [B], h0?, c?, y, yh, yc as far as WANT_*, ticks [GROUPS], state: h twice, [2, DIRECTIONS, B, H] (the step
//   before, and this one), then of an LSTM c, of a GRU whose reset comes first r * h and the update gate's sum; ROWS UNITS SHARE (units
//   that teams share: COVERED = SHARE * UNITS) RUNS, SUBGROUPS (a team is a subgroup), and of ops/recurrent.py what recurrent.wgsl expects.
// Source: ONNX operators LSTM, GRU, RNN; gates in ONNX's order (LSTM i o f c, GRU z r h).
const COVERED: u32 = SHARE * UNITS;
const BLOCKS: u32 = (H + COVERED - 1u) / COVERED;
const PLANE: u32 = DIRECTIONS * B * H;
const RESET_FIRST: bool = CELL == 1u && !LINEAR;

#include recurrent_activations.wgsl

// Biases and peepholes.
#if VECTORS
fn extra(i: u32) -> f32 { return packed_at4(i / 4u)[i % 4u]; }
#else
fn extra(i: u32) -> f32 { return packed_at(i); }
#end

#include recurrent_cell.wgsl

fn before0(i: u32) -> f32 { return state_at(i); }
fn before1(i: u32) -> f32 { return h0_at(i); }
#include recurrent_fours.wgsl

fn x_four(i: u32) -> vec4<f32> {
    var four = vec4<f32>(pre_at(i), 0.0, 0.0, 0.0);
    if (GATES > 1u) { four.y = pre_at(i + H); four.z = pre_at(i + 2u * H); }
    if (GATES > 3u) { four.w = pre_at(i + 3u * H); }
    return four;
}

fn length_of(b: u32) -> u32 {
    return select(T, u32(clamp(i32(seq_at(b)), 0, i32(T))), HAS_SEQ);
}

fn group_main(group: u32, lane: u32) {
    let tick = ticks_at(group);
    let step = select(tick, tick / 2u, RESET_FIRST);
    let ends = !RESET_FIRST || tick % 2u == 1u;         // the step, not only its first half
    let old = step % 2u * PLANE;
    let d = group / (BLOCKS * RUNS);
    let unit = group / RUNS % BLOCKS * COVERED;
#if SUBGROUPS
    let team = subgroup_id;
    let l = subgroup_lane;
#else
    let team = lane / 32u;
    let l = lane % 32u;
#end
    let gate = team % GATES;
    let own = unit + team / GATES * UNITS;
    let is_first = step == 0u && !(RESET_FIRST && ends);        // reads the initial state
    let works = !RESET_FIRST || (gate == 2u) == ends;
#for u in UNITS
    let row$u = (d * GATES + gate) * H + min(own + $(u)u, H - 1u);
#end
    for (var from_row = group % RUNS * ROWS; from_row < B; from_row += RUNS * ROWS) {
        // what a lane that stores a unit of a row needs of memory besides sums
        let j = unit + lane / ROWS;
        let b = from_row + lane % ROWS;
        let stores = lane < COVERED * ROWS && j < H && b < B;
        let at = (d * B + b) * H + j;
        var length = 0u;
        var t = 0u;
        var x = vec4<f32>();
        var h = 0.0;
        var c = 0.0;
        if (stores) {
            length = length_of(b);
            if (HAS_SEQ && tick == 0u && i32(length) != i32(seq_at(b))) { wrong_length(); }
            t = select(step, length - 1u - step, (BACKWARD || d == 1u) && step < length);
            x = x_four(((t * ROW_T + b * ROW_B) * DIRECTIONS + d) * GATES * H + j);
            if (step == 0u) {
                h = h0_at(d * STATE_D + b * STATE_B + j);
                c = c_at(d * STATE_D + b * STATE_B + j);
            } else {
                h = state_at(old + at);
                if (CELL == 2u) { c = state_at(2u * PLANE + at); }
            }
            if (HAS_BIAS) { for (var q = 0u; q < GATES; q++) { x[q] += extra(R_SIZE + (d * PLANES + q) * H + j); } }
        }
#for r in ROWS
        let from0_$r = select(old, 2u * PLANE, RESET_FIRST && ends) + (d * B + min(from_row + $(r)u, B - 1u)) * H;
        let from1_$r = d * STATE_D + min(from_row + $(r)u, B - 1u) * STATE_B;
#end
#include recurrent_sums.wgsl
        if (stores) {
            var s = vec4<f32>();
            for (var q = 0u; q < GATES; q++) {
                s[q] = sums[(((j - unit) / UNITS * GATES + q) * UNITS + (j - unit) % UNITS) * ROWS + lane % ROWS];
            }
            if (!ends) {
                state_set(2u * PLANE + at, act_f(d, x.y + s.y) * h);
                state_set(3u * PLANE + at, s.x);
            } else {
                if (RESET_FIRST) { s.x = state_at(3u * PLANE + at); }
                let next = cell(d, j, x, s, h, c);
                if (step < length) {
                    state_set(PLANE - old + at, next.x);
                    if (CELL == 2u) { state_set(2u * PLANE + at, next.y); }
                }
                finish(d, b, j, step, t, length, next);
            }
        }
        workgroupBarrier();
    }
    storageBarrier();
    let dispatches = select(T, 2u * T, RESET_FIRST);
    if (lane == 0u) { ticks_set(group, select(tick + 1u, 0u, tick + 1u == dispatches)); }
}

// What a step gives out: the last state of a unit at the end of its sequence (zero for an empty one, as ONNX Runtime has it), zeros in Y past it.
fn finish(d: u32, b: u32, j: u32, step: u32, t: u32, length: u32, next: vec2<f32>) {
    let runs = step < length;
#if WANT_Y
    y_set(t * Y_T + d * Y_D + b * Y_B + j, select(0.0, next.x, runs));
#end
    if (step + 1u == max(length, 1u)) {
#if WANT_YH
        yh_set(d * STATE_D + b * STATE_B + j, select(0.0, next.x, runs));
#end
#if WANT_YC
        yc_set(d * STATE_D + b * STATE_B + j, select(0.0, next.y, runs));
#end
    }
}
