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
const SUMS: u32 = SHARE * GATES * UNITS * ROWS;
var<workgroup> sums: array<f32, SHARE * GATES * UNITS * ROWS>;
#if not SUBGROUPS
var<workgroup> parts: array<f32, UNITS * ROWS * WORKGROUP_SIZE>;
#end

#include recurrent_activations.wgsl

// Biases and peepholes.
#if VECTORS
fn extra(i: u32) -> f32 { return packed_at4(i / 4u)[i % 4u]; }
#else
fn extra(i: u32) -> f32 { return packed_at(i); }
#end

#include recurrent_cell.wgsl

// Four elements of a row of R from element k on, zero past its end.
fn r_four(row: u32, k: u32) -> vec4<f32> {
#if VECTORS
    return packed_at4((row * H + k) / 4u);
#else
    let i = row * H + k;
    var four = vec4<f32>(packed_at(i), 0.0, 0.0, 0.0);
    if (k + 1u < H) { four.y = packed_at(i + 1u); }
    if (k + 2u < H) { four.z = packed_at(i + 2u); }
    if (k + 3u < H) { four.w = packed_at(i + 3u); }
    return four;
#end
}

fn before0(i: u32) -> f32 { return state_at(i); }
fn before1(i: u32) -> f32 { return h0_at(i); }
#for first in 2
// Likewise of a row of what the first step reads, or a later one, which begins at element i.
fn four$first(i: u32, k: u32) -> vec4<f32> {
    var four = vec4<f32>(before$(first)(i + k), 0.0, 0.0, 0.0);
#for e in 3
#if VECTORS
    four[$(e + 1)] = before$(first)(i + k + $(e + 1)u);
#else
    if (k + $(e + 1)u < H) { four[$(e + 1)] = before$(first)(i + k + $(e + 1)u); }
#end
#end
    return four;
}
#end

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
#for u in UNITS
        let row$u = (d * GATES + gate) * H + min(own + $(u)u, H - 1u);
#for r in ROWS
        var sum$(u)_$r = 0.0;
#end
#end
#for r in ROWS
        let row_of_state$r = (d * B + min(from_row + $(r)u, B - 1u)) * H;
#end
#for first in 2
#if first == 0 or HAS_H0
#if first
        if (works && is_first) {
#else
        if (works && !is_first) {
#end
#for r in ROWS
#if first
            let from$r = d * STATE_D + min(from_row + $(r)u, B - 1u) * STATE_B;
#else
            let from$r = select(old, 2u * PLANE, RESET_FIRST && ends) + row_of_state$r;
#end
#end
            for (var i = 0u; i < (H + 127u) / 128u; i++) {
                let k = 4u * (i * 32u + l);
                if (H % 128u == 0u || k < H) {
#for r in ROWS
                    let h$r = four$(first)(from$r, k);
#end
#for u in UNITS
                    let w$u = r_four(row$u, k);
#for r in ROWS
                    sum$(u)_$r += dot(w$u, h$r);
#end
#end
                }
            }
        }
#end
#end
#for u in UNITS
#for r in ROWS
#if SUBGROUPS
        let total$(u)_$r = subgroupAdd(sum$(u)_$r);
        if (l == 0u) { sums[(team * UNITS + $(u)u) * ROWS + $(r)u] = total$(u)_$r; }
#else
        parts[$(u * ROWS + r)u * WORKGROUP_SIZE + lane] = sum$(u)_$r;
#end
#end
#end
        workgroupBarrier();
#if not SUBGROUPS
        if (lane < SUMS) {
            let first = lane % (UNITS * ROWS) * WORKGROUP_SIZE + lane / (UNITS * ROWS) * 32u;
            var total = vec4<f32>();
            for (var i = 0u; i < 8u; i++) {
#for e in 4
                total[$e] += parts[first + (4u * i + $(e)u + lane) % 32u];
#end
            }
            sums[lane] = (total.x + total.y) + (total.z + total.w);
        }
        workgroupBarrier();
#end
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
