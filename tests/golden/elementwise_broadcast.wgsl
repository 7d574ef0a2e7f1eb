// (2, 1, 1) workgroups
// elementwise.wgsl
@group(0) @binding(0) var<storage, read> e0: array<f32>;
@group(0) @binding(1) var<storage, read> e1: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
fn e0_index(i: u32) -> u32 {
    return u32(i32((i % 7u)) + i32((i / 21u)) * 7i);
}
fn e1_index(i: u32) -> u32 {
    return u32(i32(((i / 7u) % 3u)));
}
alias e0_t = f32;
fn e0_at(i: u32) -> f32 { return e0[i]; }
alias e1_t = f32;
fn e1_at(i: u32) -> f32 { return e1[i]; }
alias y_t = f32;
fn y_at(i: u32) -> f32 { return y[i]; }
fn step0(x: f32, y: f32) -> f32 { return x + y; }
fn fused(v: y_t, i: u32) -> f32 {
    let e0_value = e0_at(e0_index(i));
    let e1_value = e1_at(e1_index(i));
    let s0_value = step0(e0_value, e1_value);
    return s0_value;
}
fn y_set(i: u32, v: y_t) { y[i] = fused(v, i); }
// y[i] = the fused steps, which read their operands themselves.
fn element(i: u32) -> y_t { return y_t(); }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    let i = id.x + id.y * n.x * 64u;
    if (i >= 105u) { return; }
    y_set(i, element(i));
}
