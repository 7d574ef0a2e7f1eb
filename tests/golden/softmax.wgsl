// (10, 1, 1) workgroups
// softmax_rows.wgsl
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
const COUNT: u32 = 37u;
const UNITS: u32 = 211u;
const FOURS: bool = false;
const KIND: u32 = 0u;
const PER_GROUP: u32 = 4u;
const HELD: u32 = 7u;
const SUBGROUPS: bool = false;
alias x_t = f32;
fn x_at(i: u32) -> f32 { return x[i]; }
alias y_t = f32;
fn y_at(i: u32) -> f32 { return y[i]; }
fn y_set(i: u32, v: y_t) { y[i] = v; }
// Softmax (KIND 0) or its logarithm (1) of rows whose elements lie together. A subgroup (SUBGROUPS), TEAM invocations or (PER_GROUP 1) a
// workgroup have a row, four elements at a time (FOURS) or one: the first HELD of each stay in registers between the passes.
// Expects: x, y (as vectors of four elements where FOURS), COUNT (rows), UNITS (of a row: vectors or elements), PER_GROUP (rows of a
// workgroup), HELD. Source: ONNX Softmax, LogSoftmax.
// What a team makes of its lanes' values, each lane is given: a subgroup of its own (SUBGROUPS, PER_GROUP > 1), else TEAM neighbours of the
// workgroup. Every lane of the workgroup calls it.
// Expects: WORKGROUP_SIZE PER_GROUP (teams of a workgroup) SUBGROUPS.
const TEAM: u32 = WORKGROUP_SIZE / PER_GROUP;
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;

fn whole_sum(v: f32, lane: u32) -> f32 {
    workgroupBarrier();
    parts[lane] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane % TEAM < s) { parts[lane] += parts[lane + s]; }
    }
    workgroupBarrier();
    return parts[lane - lane % TEAM];
}

fn whole_max(v: f32, lane: u32) -> f32 {
    workgroupBarrier();
    parts[lane] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane % TEAM < s) { parts[lane] = max(parts[lane], parts[lane + s]); }
    }
    workgroupBarrier();
    return parts[lane - lane % TEAM];
}

alias Unit = f32;
fn load(i: u32) -> Unit { return x_at(i); }
fn store(i: u32, v: Unit) { y_set(i, v); }
fn sum_of(v: Unit) -> f32 { return v; }
fn top_of(v: Unit) -> f32 { return v; }
fn power(v: Unit) -> Unit { return exp_f32(v); }

fn normalize(row: u32, member: u32, team: u32, lane: u32) {
    let start = min(row, COUNT - 1u) * UNITS;
    var top = -inf_f32();
    var x0 = Unit();
    if (member + 0u * team < UNITS) {
        x0 = load(start + member + 0u * team);
        top = max(top, top_of(x0));
    }
    var x1 = Unit();
    if (member + 1u * team < UNITS) {
        x1 = load(start + member + 1u * team);
        top = max(top, top_of(x1));
    }
    var x2 = Unit();
    if (member + 2u * team < UNITS) {
        x2 = load(start + member + 2u * team);
        top = max(top, top_of(x2));
    }
    var x3 = Unit();
    if (member + 3u * team < UNITS) {
        x3 = load(start + member + 3u * team);
        top = max(top, top_of(x3));
    }
    var x4 = Unit();
    if (member + 4u * team < UNITS) {
        x4 = load(start + member + 4u * team);
        top = max(top, top_of(x4));
    }
    var x5 = Unit();
    if (member + 5u * team < UNITS) {
        x5 = load(start + member + 5u * team);
        top = max(top, top_of(x5));
    }
    var x6 = Unit();
    if (member + 6u * team < UNITS) {
        x6 = load(start + member + 6u * team);
        top = max(top, top_of(x6));
    }
    for (var k = member + 7u * team; k < UNITS; k += team) { top = max(top, top_of(load(start + k))); }
    top = whole_max(top, lane);
    var sum = Unit();
    if (member + 0u * team < UNITS) {
        x0 -= top;
        x0 = power(x0);
        sum += x0;
    }
    if (member + 1u * team < UNITS) {
        x1 -= top;
        x1 = power(x1);
        sum += x1;
    }
    if (member + 2u * team < UNITS) {
        x2 -= top;
        x2 = power(x2);
        sum += x2;
    }
    if (member + 3u * team < UNITS) {
        x3 -= top;
        x3 = power(x3);
        sum += x3;
    }
    if (member + 4u * team < UNITS) {
        x4 -= top;
        x4 = power(x4);
        sum += x4;
    }
    if (member + 5u * team < UNITS) {
        x5 -= top;
        x5 = power(x5);
        sum += x5;
    }
    if (member + 6u * team < UNITS) {
        x6 -= top;
        x6 = power(x6);
        sum += x6;
    }
    for (var k = member + 7u * team; k < UNITS; k += team) { sum += power(load(start + k) - top); }
    let all = whole_sum(sum_of(sum), lane);
    let factor = 1.0 / all;
    if (row >= COUNT) { return; }
    if (member + 0u * team < UNITS) {
        store(start + member + 0u * team, x0 * factor);
    }
    if (member + 1u * team < UNITS) {
        store(start + member + 1u * team, x1 * factor);
    }
    if (member + 2u * team < UNITS) {
        store(start + member + 2u * team, x2 * factor);
    }
    if (member + 3u * team < UNITS) {
        store(start + member + 3u * team, x3 * factor);
    }
    if (member + 4u * team < UNITS) {
        store(start + member + 4u * team, x4 * factor);
    }
    if (member + 5u * team < UNITS) {
        store(start + member + 5u * team, x5 * factor);
    }
    if (member + 6u * team < UNITS) {
        store(start + member + 6u * team, x6 * factor);
    }
    for (var k = member + 7u * team; k < UNITS; k += team) {
        store(start + k, power(load(start + k) - top) * factor);
    }
}

fn group_main(group: u32, lane: u32) {
    normalize(group * PER_GROUP + lane / TEAM, lane % TEAM, TEAM, lane);
}

const GROUPS: u32 = 10u;
const WORKGROUP_SIZE: u32 = 128u;
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = id.x + id.y * n.x;
    if (group >= GROUPS) { return; }
    group_main(group, lane);
}
fn inf_f32() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn exp_f32(x: f32) -> f32 { return exp_scaled_f32(x, 0); }
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
