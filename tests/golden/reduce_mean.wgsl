// (1, 1, 1) workgroups
// reduce.wgsl
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
const ROWS: u32 = 15u;
const N: u32 = 17u;
const TEAM: u32 = 8u;
const ADJACENT: bool = true;
const PARTS: u32 = 1u;
const LENGTH: u32 = 17u;
const COUNT: u32 = 17u;
const P: u32 = 1u;
const FOLD: u32 = 0u;
const PREPARE: u32 = 0u;
const FINISH: u32 = 1u;
const FLOAT: bool = true;
fn row_start(i: u32) -> u32 {
    return u32(i32((i % 5u)) + i32((i / 5u)) * 85i);
}
fn row_step(i: u32) -> u32 {
    return u32(i32(i) * 5i);
}
alias x_t = f32;
fn x_at(i: u32) -> f32 { return x[i]; }
alias y_t = f32;
fn y_at(i: u32) -> f32 { return y[i]; }
fn y_set(i: u32, v: y_t) { y[i] = v; }
// y[row] = finish(fold of prepare(x) over the row). TEAM invocations of a workgroup share a row; a workgroup has WORKGROUP_SIZE / TEAM rows.
// Expects: ROWS, N (row length, at least 1), TEAM (a power of two), ADJACENT (neighbouring invocations take neighbouring rows,
// not elements), the position in x of a row (row_start) and of an element within it (row_step), and what the fold is: FOLD (0 sum,
// 1 product, 2 maximum, 3 minimum), PREPARE (0 x, 1 |x|, 2 x^2, 3 |x|^P), FINISH (0 a, 1 a / COUNT, 2 sqrt a, 3 log a, 4 a^(1/P)).
// PARTS > 1: a row of y is one of PARTS pieces of a longer row, LENGTH elements in all. Sums go through partial sums of 32.
// Source: ONNX Reduce*, Global*Pool.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> parts: array<x_t, WORKGROUP_SIZE>;

fn one() -> x_t { return x_t(1); }

fn prepare(v: x_t) -> x_t {
    if (PREPARE == 1u) { return abs(v); }
    if (PREPARE == 2u) { return v * v; }
    if (PREPARE == 3u) {
        var r = abs(v);
        for (var k = 1u; k < P; k++) { r *= abs(v); }
        return r;
    }
    return v;
}

fn join(a: x_t, b: x_t) -> x_t {
    if (FOLD == 0u) { return a + b; }
    if (FOLD == 1u) { return a * b; }
    if (FLOAT && is_nan_f32(f32(a))) { return a; }
    if (FLOAT && is_nan_f32(f32(b))) { return b; }
    if (FOLD == 2u) { return max(a, b); }
    return min(a, b);
}

fn finish(a: x_t) -> y_t {
    if (FINISH == 1u) { return y_t(divide_f32(f32(a), f32(COUNT)).x); }
    if (FINISH == 2u) { return y_t(sqrt_f32(f32(a))); }
    if (FINISH == 3u) { return y_t(log_f32(f32(a))); }
    if (FINISH == 4u) { return y_t(select(pow(f32(a), 1.0 / f32(P)), 0.0, f32(a) == 0.0)); }
    return y_t(a);
}

fn group_main(group: u32, lane: u32) {
    let slot = select(lane / TEAM, lane % PER_GROUP, ADJACENT);
    let member = select(lane % TEAM, lane / PER_GROUP, ADJACENT);
    let row = group * PER_GROUP + slot;
    let first = row % PARTS * N;
    let n = select(0u, min(N, max(LENGTH, first) - first), row < ROWS);
    let at = row_start(min(row / PARTS, ROWS / PARTS - 1u));
    var total: x_t;
    if (FOLD == 1u) { total = one(); }
    if (FOLD > 1u && n > 0u) { total = prepare(x_at(at + row_step(first))); }
    var k = member;
    while (k < n) {
        var part = prepare(x_at(at + row_step(first + k)));
        k += TEAM;
        for (var j = 1u; j < 32u && k < n; j++) {
            part = join(part, prepare(x_at(at + row_step(first + k))));
            k += TEAM;
        }
        total = join(total, part);
    }
    let mine = slot * TEAM + member;
    parts[mine] = total;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[mine] = join(parts[mine], parts[mine + s]); }
    }
    if (member == 0u && row < ROWS) { y_set(row, finish(parts[mine])); }
}

const GROUPS: u32 = 1u;
const WORKGROUP_SIZE: u32 = 256u;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = id.x + id.y * n.x;
    if (group >= GROUPS) { return; }
    group_main(group, lane);
}
fn is_nan_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn divide_f32(n: f32, d: f32) -> vec2<f32> {
    let q = n / d;
    if (!(abs(q) > 1e-30 && abs(q) < 1e30 && abs(d) > 1e-30 && abs(d) < 1e30)) { return vec2<f32>(q, 0.0); }
    let q_head = head_f32(q);
    let d_head = head_f32(d);
    let q_tail = q - q_head;
    let d_tail = d - d_head;
    let remainder = ((n - q_head * d_head) - q_head * d_tail) - q_tail * d_head - q_tail * d_tail;
    let bits = bitcast<i32>(q);
    let unit = abs(d) * bitcast<f32>((bits & 0x7f800000) - (23 << 23u)) * sign(q) * sign(d);
    let steps = round(remainder / unit);
    return vec2<f32>(bitcast<f32>(bits + i32(steps)), (remainder - steps * unit) / d);
}
fn sqrt_f32(x: f32) -> f32 {
    let r = sqrt(x);
    if (!(x > 1e-20 && x < 1e38)) { return r; }
    let head = head_f32(r);
    let tail = r - head;
    let remainder = ((x - head * head) - 2.0 * head * tail) - tail * tail;
    let bits = bitcast<i32>(r);
    let unit = 2.0 * r * bitcast<f32>((bits & 0x7f800000) - (23 << 23u));
    return bitcast<f32>(bits + i32(round(remainder / unit * 0.999999)));
}
fn log_f32(x: f32) -> f32 {
    let tiny = x < 1.17549435e-38;
    let i = bitcast<i32>(select(x, x * 8388608.0, tiny)) - 0x3f3504f3;
    let f = bitcast<f32>((i & 0x7fffff) + 0x3f3504f3) - 1.0;
    let y = log_sum_f32(f, f32((i >> 23u) - select(0, 23, tiny)));
    return select(select(y, x, is_nan_f32(x) || x == inf_f32()), select(nan_f32(), -inf_f32(), x == 0.0), x <= 0.0);
}
fn inf_f32() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn nan_f32() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }
fn log_sum_f32(f: f32, k: f32) -> f32 {
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * (0.66666662693 + z * (0.40000972152 + z * (0.28498786688 + z * 0.24279078841)));
    let h = 0.5 * f * f;
    return k * 0.69313812256 + ((s * (h + r) + k * 9.0580006145e-6) - h + f);
}
fn head_f32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }
