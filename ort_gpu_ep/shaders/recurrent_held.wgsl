// A stack of LSTM or GRU layers, all steps of it: a workgroup runs one direction of one batch row, each layer a step behind the one below.
// Weights stay in registers. A unit has four lanes. Lane q of them sums all four gates over a quarter of what its layer reads (vectors
// q, q + 4, ... of its input and its old state); then the four exchange sums, so that lane q has the whole of gate q.
// Gates: LSTM i, o, f, c; GRU z, r, the input's share of the candidate, the state's (which r scales: linear_before_reset).
// Expects: x [rows, I] or, where PRE, pre [rows, DIRECTIONS * GATES * H] (x * W^T of the first layer); packed0, packed1, ... (what
//   recurrent_held_weights.wgsl packs of each layer); seq [B] if SEQ; h0, h1, ... if STATES and c0, c1, ... if CELLS (old states of the
//   layers); y, yh, yc (of the last layer) as far as WANT_*; H, T, B, LAYERS, VECS (vectors a lane reads), IV (vectors of an x row, 0
//   where PRE), HV (of a state), CELL (1 GRU, 2 LSTM), strides ROW_*, Y_*, STATE_*, BACKWARD.
//   QUADS: the four lanes exchange by subgroup operations; else through workgroup memory, with one barrier more.
// Source: ONNX operators LSTM, GRU.
const ROW: u32 = IV + LAYERS * HV;      // vectors that a step reads: its row of x, then the state of each layer
const WEIGHTS: u32 = 4u * VECS * 4u * H;        // vectors of a direction's weights
var<workgroup> seen: array<vec4<f32>, 2u * (IV + LAYERS * HV)>;
#if not QUADS
var<workgroup> parts: array<vec4<f32>, WORKGROUP_SIZE>;
#end

// exp(-x) once: the logistic function, or tanh. What WGSL's exp is off by, 3 + 2 |x| units, moves either by 1e-7 at most.
fn squash(x: f32, is_tanh: bool) -> f32 {
    let r = 1.0 / (1.0 + exp(select(-x, 2.0 * abs(x), is_tanh)));
    let z = x * x;
    let p = ((((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z - 3.33332819422e-1) * z * x + x;
    return select(r, select(copysign_f32(1.0 - 2.0 * r, x), p, abs(x) < 0.625), is_tanh);
}

fn time_of(step: u32, length: u32, backward: bool) -> u32 {
    let t = min(step, max(length, 1u) - 1u);
    return select(t, max(length, 1u) - 1u - t, backward);
}

#if IV
// Vector v of a row of x.
fn x_four(t: u32, b: u32, v: u32) -> vec4<f32> {
    let i = (t * ROW_T + b * ROW_B) * I + 4u * v;
    var four = vec4<f32>(x_at(i), 0.0, 0.0, 0.0);
    if (4u * v + 1u < I) { four.y = x_at(i + 1u); }
    if (4u * v + 2u < I) { four.z = x_at(i + 2u); }
    if (4u * v + 3u < I) { four.w = x_at(i + 3u); }
    return four;
}
#end

fn group_main(group: u32, lane: u32) {
    let d = group / B;
    let b = group % B;
    let layer = lane / (4u * H);
    let mine = lane % (4u * H);
    let j = mine / 4u;
    let q = mine % 4u;
#if SEQ
    let length = u32(clamp(i32(seq_at(b)), 0, i32(T)));
    if (i32(length) != i32(seq_at(b))) { wrong_length(); }
#else
    let length = T;
#end
    let backward = BACKWARD || d == 1u;
    let at = d * STATE_D + b * STATE_B + j;
#for k in 4 * VECS
    var w$k: vec4<f32>;
#end
    var bias: vec4<f32>;
    var h = 0.0;
    var c = 0.0;
#for l in LAYERS
    if (layer == $(l)u) {
#for k in 4 * VECS
        w$k = packed$(l)_at4(d * WEIGHTS + $(k)u * 4u * H + mine);
#end
        bias = packed$(l)_at4(DIRECTIONS * WEIGHTS + d * H + j);
#if STATES
        h = h$(l)_at(at);
#end
#if CELLS
        c = c$(l)_at(at);
#end
    }
#end
    for (var i = lane; i < 2u * ROW; i += WORKGROUP_SIZE) { seen[i] = vec4<f32>(); }      // a vector's rest meets weights of zero: no NaN may be there
    workgroupBarrier();
    let first = select(IV + (layer - 1u) * HV, 0u, layer == 0u);
    let last = IV + layer * HV + HV - 1u;
#if IV
    var ahead = vec4<f32>();
    if (lane < IV) {
        seen[lane] = x_four(time_of(0u, length, backward), b, lane);
        ahead = x_four(time_of(1u, length, backward), b, lane);
    }
#else
    let column = d * GATES * H + min(q, GATES - 1u) * H + j;
    var ahead = pre_at((time_of(0u, length, backward) * ROW_T + b * ROW_B) * DIRECTIONS * GATES * H + column);
#end
    if (q == 0u) { seen[IV + layer * HV + j / 4u][j % 4u] = h; }
    workgroupBarrier();
    for (var s = 0u; s < length + LAYERS - 1u; s++) {
        let old = (s & 1u) * ROW;
        let next = ROW - old;
        let step = s - layer;            // wraps around before the layer begins
        let runs = step < length;
#if IV
        if (lane < IV) {                 // memory is a step ahead
            seen[next + lane] = ahead;
            ahead = x_four(time_of(s + 2u, length, backward), b, lane);
        }
#else
        let given = select(0.0, ahead, layer == 0u && q < GATES);
        ahead = pre_at((time_of(s + 1u, length, backward) * ROW_T + b * ROW_B) * DIRECTIONS * GATES * H + column);
#end
        var even = vec4<f32>();
        var odd = vec4<f32>();
#for v in VECS
        let seen$v = seen[old + min(first + q + $(4 * v)u, last)];
        even = fma(w$(4 * v), vec4<f32>(seen$v.x), even);
        odd = fma(w$(4 * v + 1), vec4<f32>(seen$v.y), odd);
        even = fma(w$(4 * v + 2), vec4<f32>(seen$v.z), even);
        odd = fma(w$(4 * v + 3), vec4<f32>(seen$v.w), odd);
#end
        let sums = even + odd;
#if QUADS
        // of each pair of gates one goes to the neighbour that keeps it, then the same over the next neighbour but one
        let is_odd = (q & 1u) == 1u;
        let is_high = q > 1u;
        let pair = select(sums.xz, sums.yw, is_odd) + quadSwapX(select(sums.yw, sums.xz, is_odd));
        var gate = select(pair.x, pair.y, is_high) + quadSwapY(select(pair.y, pair.x, is_high)) + bias[q];
#if PRE
        gate += given;
#end
#if CELL == 2
        let value = squash(gate, q == 3u);
#else
        let value = select(squash(gate, false), gate, is_high);
#end
        let all = vec4<f32>(quadBroadcast(value, 0u), quadBroadcast(value, 1u), quadBroadcast(value, 2u), quadBroadcast(value, 3u));
#else
        parts[lane] = sums;
#if PRE
        parts[lane][q] += given;
#end
        workgroupBarrier();
        let base = lane - q;
        let gates = (parts[base] + parts[base + 1u]) + (parts[base + 2u] + parts[base + 3u]) + bias;
#if CELL == 2
        let all = vec4<f32>(squash(gates.x, false), squash(gates.y, false), squash(gates.z, false), squash(gates.w, true));
#else
        let all = vec4<f32>(squash(gates.x, false), squash(gates.y, false), gates.zw);
#end
#end
#if CELL == 2
        let new_c = all.z * c + all.x * all.w;
        let new_h = all.y * squash(new_c, true);
        c = select(c, new_c, runs);
#else
        let new_h = (1.0 - all.x) * squash(all.z + all.y * all.w, true) + all.x * h;
#end
        h = select(h, new_h, runs);
        if (q == 0u) {
            seen[next + IV + layer * HV + j / 4u][j % 4u] = h;
#if WANT_Y
            if (runs && layer == LAYERS - 1u) { y_set(time_of(step, length, backward) * Y_T + d * Y_D + b * Y_B + j, h); }
#end
        }
        workgroupBarrier();
    }
    if (q != 0u || layer != LAYERS - 1u) { return; }
    // as ONNX Runtime has it: zero states of an empty sequence, zeros in y past a short one
#if WANT_YH
    yh_set(at, select(0.0, h, length > 0u));
#end
#if WANT_YC
    yc_set(at, select(0.0, c, length > 0u));
#end
#if WANT_Y and SEQ
    for (var t = length; t < T; t++) { y_set(t * Y_T + d * Y_D + b * Y_B + j, 0.0); }
#end
}
