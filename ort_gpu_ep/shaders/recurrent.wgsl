// A whole recurrent layer: a workgroup runs all steps of one direction of one batch row, its state h in workgroup memory.
// A lane owns hidden unit j (and j + WIDTH, ...) with all its gates, for one of SLICES parts of the sum over the old state.
// Expects: pre [rows, directions * GATES * H] (x * W^T), r (what recurrent_weights.wgsl packs: R [directions, GATES, k, j],
//   biases [directions, PLANES, H] if HAS_BIAS, peepholes [directions, 3, H] of i, o, f), or r and rest (R by itself as its decoder
//   gives it, [directions, GATES, j, k], and what else is packed), R_UNIT and R_K (strides of j and k), seq? [B], h0?, c?, y, yh, yc, and
//   of ops/recurrent.py CELL (0 RNN, 1 GRU, 2 LSTM), LINEAR, strides ROW_*, Y_*, STATE_*, activations F, G, A.
// Source: ONNX operators LSTM, GRU, RNN; gates in ONNX's order (LSTM i o f c, GRU z r h).
#default ROUNDED = 0
const SPAN: u32 = (H + SLICES - 1u) / SLICES;
const UNITS: u32 = (H + WIDTH - 1u) / WIDTH;
const RESET_FIRST: bool = CELL == 1u && !LINEAR;
const SCALED: u32 = 2u * H;              // where r * h lies in `state`, behind the old and the new h
var<workgroup> state: array<f32, STATE_SIZE>;
var<workgroup> parts: array<vec4<f32>, PARTS>;

#include recurrent_activations.wgsl

// Biases and peepholes.
#if HAS_REST
fn extra(i: u32) -> f32 { return rest_at(i); }
#else
fn extra(i: u32) -> f32 { return r_at(i); }
#end

// R[gate, j, k] of the gates in `mask`, zero for the others; i: of gate 0.
fn r_four(i: u32, mask: u32) -> vec4<f32> {
    var four = vec4<f32>();
    if ((mask & 1u) > 0u) { four.x = r_at(i); }
    if (GATES > 1u && (mask & 2u) > 0u) { four.y = r_at(i + H * H); }
    if (GATES > 1u && (mask & 4u) > 0u) { four.z = r_at(i + 2u * H * H); }
    if (GATES > 3u) { four.w = r_at(i + 3u * H * H); }
    return four;
}

// Of unit j: the sum over k of R[gate, j, k] * state[old + k], for the gates in `mask`. Lanes below WIDTH get the total.
fn recur(d: u32, j: u32, old: u32, mask: u32, lane: u32) -> vec4<f32> {
    let first = (lane / WIDTH) * SPAN;
    let end = min(first + SPAN, H);
    let base = d * GATES * H * H + j * R_UNIT;
    var total = vec4<f32>();
    var second = vec4<f32>();            // chains: loads overlap, rounding errors stay small
    var third = vec4<f32>();
    var fourth = vec4<f32>();
    var k = first;
    for (; k + 4u <= end; k += 4u) {
        total += state[old + k] * r_four(base + k * R_K, mask);
        second += state[old + k + 1u] * r_four(base + (k + 1u) * R_K, mask);
        third += state[old + k + 2u] * r_four(base + (k + 2u) * R_K, mask);
        fourth += state[old + k + 3u] * r_four(base + (k + 3u) * R_K, mask);
    }
    for (; k < end; k++) { total += state[old + k] * r_four(base + k * R_K, mask); }
    total = (total + second) + (third + fourth);
    if (SLICES > 1u) {
        parts[lane] = total;
        workgroupBarrier();
        if (lane < WIDTH) { for (var i = lane + WIDTH; i < WORKGROUP_SIZE; i += WIDTH) { total += parts[i]; } }
    }
    return total;
}

#include recurrent_cell.wgsl

#if ROUNDED
// ROUNDED (left out: it is not): the sums read h as DynamicQuantizeLinear would have it, in the place of r * h. A row of the batch has a scale.
fn round_state(old: u32, lane: u32) {
    var least = 0.0;
    var most = 0.0;
    for (var k = 0u; k < H; k++) {
        least = min(least, state[old + k]);
        most = max(most, state[old + k]);
    }
    let scale = select(1.0, divide_f32(most - least, 255.0).x, most > least);
    let zero = clamp(round(divide_f32(-least, scale).x), 0.0, 255.0);
    for (var j = lane; j < H; j += WORKGROUP_SIZE) {
        state[SCALED + j] = (clamp(round(divide_f32(state[old + j], scale).x) + zero, 0.0, 255.0) - zero) * scale;
    }
}

#end
fn x_four(i: u32) -> vec4<f32> {
    var four = vec4<f32>(pre_at(i), 0.0, 0.0, 0.0);
    if (GATES > 1u) { four.y = pre_at(i + H); four.z = pre_at(i + 2u * H); }
    if (GATES > 3u) { four.w = pre_at(i + 3u * H); }
    return four;
}

fn group_main(group: u32, lane: u32) {
    let d = group / B;
    let b = group % B;
    let length = select(T, u32(clamp(i32(seq_at(b)), 0, i32(T))), HAS_SEQ);
    if (HAS_SEQ && i32(length) != i32(seq_at(b))) { wrong_length(); }
    let owner = lane < WIDTH;            // the other slices only add up
    let at = d * STATE_D + b * STATE_B;
    var c: array<f32, UNITS>;
    var x: array<vec4<f32>, UNITS>;
    var s: array<vec4<f32>, UNITS>;
    var bias: array<vec4<f32>, UNITS>;
    for (var u = 0u; u < UNITS; u++) {
        let j = lane % WIDTH + u * WIDTH;
        if (owner && j < H) {
            state[j] = h0_at(at + j);
            c[u] = c_at(at + j);
            if (HAS_BIAS) { for (var q = 0u; q < GATES; q++) { bias[u][q] = extra(R_SIZE + (d * PLANES + q) * H + j); } }
        }
    }
    workgroupBarrier();
    for (var step = 0u; step < length; step++) {
        let t = select(step, length - 1u - step, BACKWARD || d == 1u);
        let old = (step % 2u) * H;
#if ROUNDED
        round_state(old, lane);
        workgroupBarrier();
#end
        for (var u = 0u; u < UNITS; u++) {
            let j = min(lane % WIDTH + u * WIDTH, H - 1u);
            x[u] = bias[u] + x_four(((t * ROW_T + b * ROW_B) * DIRECTIONS + d) * GATES * H + j);
#if ROUNDED
            s[u] = recur(d, j, SCALED, 15u, lane);
#else
            s[u] = recur(d, j, old, select(15u, 3u, RESET_FIRST), lane);
#end
            if (RESET_FIRST && owner && lane + u * WIDTH < H) { state[SCALED + j] = act_f(d, x[u].y + s[u].y) * state[old + j]; }
        }
        if (RESET_FIRST) {               // GRU whose candidate sums over r * h: all r come first
            workgroupBarrier();
            for (var u = 0u; u < UNITS; u++) {
                s[u].z = recur(d, min(lane % WIDTH + u * WIDTH, H - 1u), SCALED, 4u, lane).z;
            }
        }
        for (var u = 0u; u < UNITS; u++) {
            let j = lane % WIDTH + u * WIDTH;
            if (owner && j < H) {
                let next = cell(d, j, x[u], s[u], state[old + j], c[u]);
                state[H - old + j] = next.x;
                c[u] = next.y;
                if (WANT_Y) { y_set(t * Y_T + d * Y_D + b * Y_B + j, next.x); }
            }
        }
        workgroupBarrier();
    }
    for (var u = 0u; u < UNITS; u++) {
        let j = lane % WIDTH + u * WIDTH;
        if (owner && j < H) { finish(at + j, d * Y_D + b * Y_B + j, length, state[(length % 2u) * H + j], c[u]); }
    }
}

// The last state of a unit (zero for an empty sequence, as ONNX Runtime has it), and zeros in Y past the sequence.
fn finish(at: u32, y_first: u32, length: u32, h: f32, c: f32) {
    if (WANT_YH) { yh_set(at, select(0.0, h, length > 0u)); }
    if (WANT_YC) { yc_set(at, select(0.0, c, length > 0u)); }
    if (WANT_Y) { for (var t = length; t < T; t++) { y_set(y_first + t * Y_T, 0.0); } }
}
