// (10, 1, 1) workgroups
// softmax.wgsl
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
const KIND: u32 = 0u;
const ROWS: u32 = 37u;
const N: u32 = 211u;
const TEAM: u32 = 64u;
const ADJACENT: bool = false;
fn row_start(i: u32) -> u32 {
    return u32(i32(i) * 211i);
}
fn row_step(i: u32) -> u32 {
    return u32(i32(i));
}
alias x_t = f32;
fn x_at(i: u32) -> f32 { return x[i]; }
alias y_t = f32;
fn y_at(i: u32) -> f32 { return y[i]; }
fn y_set(i: u32, v: y_t) { y[i] = v; }
// Softmax, its logarithm, or logsumexp of rows. TEAM invocations of a workgroup share a row; a workgroup has WORKGROUP_SIZE / TEAM rows.
// Expects: ROWS, N (row length), TEAM (a power of two), ADJACENT (neighbouring invocations take neighbouring rows, not elements),
// KIND (0 softmax, 1 logsoftmax, 2 logsumexp), and the position in x of a row (row_start) and of an element within it (row_step).
// Source: ONNX Softmax, LogSoftmax, ReduceLogSumExp.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;

fn team_max(v: f32, first: u32, member: u32) -> f32 {
    parts[first + member] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[first + member] = max(parts[first + member], parts[first + member + s]); }
    }
    workgroupBarrier();
    let result = parts[first];
    workgroupBarrier();
    return result;
}

fn team_sum(v: f32, first: u32, member: u32) -> f32 {
    parts[first + member] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[first + member] += parts[first + member + s]; }
    }
    workgroupBarrier();
    return parts[first];
}

fn group_main(group: u32, lane: u32) {
    let slot = select(lane / TEAM, lane % PER_GROUP, ADJACENT);
    let member = select(lane % TEAM, lane / PER_GROUP, ADJACENT);
    let row = group * PER_GROUP + slot;
    let n = select(0u, N, row < ROWS);
    let at = row_start(min(row, ROWS - 1u));
    var top = -inf_f32();
    for (var k = member; k < n; k += TEAM) { top = max(top, x_at(at + row_step(k))); }
    top = team_max(top, slot * TEAM, member);
    if (KIND == 2u && is_inf_f32(top)) { top = 0.0; }
    var sum = 0.0;
    var k = member;
    while (k < n) {
        var part = 0.0;
        for (var j = 0u; j < 32u && k < n; j++) {
            part += exp_f32(x_at(at + row_step(k)) - top);
            k += TEAM;
        }
        sum += part;
    }
    sum = team_sum(sum, slot * TEAM, member);
    if (KIND == 2u) {
        if (member == 0u && row < ROWS) { y_set(row, top + log_f32(sum)); }
        return;
    }
    let shift = select(0.0, log_f32(sum), KIND == 1u);
    for (var k = member; k < n; k += TEAM) {
        let i = at + row_step(k);
        let v = x_at(i) - top;
        if (KIND == 1u) { y_set(i, v - shift); } else { y_set(i, exp_f32(v) / sum); }
    }
}

const GROUPS: u32 = 10u;
const WORKGROUP_SIZE: u32 = 256u;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = id.x + id.y * n.x;
    if (group >= GROUPS) { return; }
    group_main(group, lane);
}
fn inf_f32() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn is_inf_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn exp_f32(x: f32) -> f32 { return exp_scaled_f32(x, 0); }
fn log_f32(x: f32) -> f32 {
    let tiny = x < 1.17549435e-38;
    let i = bitcast<i32>(select(x, x * 8388608.0, tiny)) - 0x3f3504f3;
    let f = bitcast<f32>((i & 0x7fffff) + 0x3f3504f3) - 1.0;
    let y = log_sum_f32(f, f32((i >> 23u) - select(0, 23, tiny)));
    return select(select(y, x, is_nan_f32(x) || x == inf_f32()), select(nan_f32(), -inf_f32(), x == 0.0), x <= 0.0);
}
fn nan_f32() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }
fn is_nan_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn log_sum_f32(f: f32, k: f32) -> f32 {
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * (0.66666662693 + z * (0.40000972152 + z * (0.28498786688 + z * 0.24279078841)));
    let h = 0.5 * f * f;
    return k * 0.69313812256 + ((s * (h + r) + k * 9.0580006145e-6) - h + f);
}
fn exp_scaled_f32(x: f32, n: i32) -> f32 {
    let k = round(clamp(x, -104.0, 90.0) * 1.44269504);
    let r = (x - k * 0.693359375) + k * 2.12194440e-4;
    return select(scale_f32(1.0 + exp_tail_f32(r), i32(k) + n), 0.0, x < -104.0);
}
fn scale_f32(x: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}
fn exp_tail_f32(r: f32) -> f32 {
    let p = ((((1.9875691500e-4 * r + 1.3981999507e-3) * r + 8.3334519073e-3) * r + 4.1665795894e-2) * r + 1.6666665459e-1) * r + 5.0000001201e-1;
    return p * (r * r) + r;
}
