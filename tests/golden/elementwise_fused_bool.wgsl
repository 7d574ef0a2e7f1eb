// (1, 1, 1) workgroups
// elementwise.wgsl
@group(0) @binding(0) var<storage, read> e0: array<f32>;
@group(0) @binding(1) var<storage, read> e1: array<f32>;
@group(0) @binding(2) var<storage, read> e2: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;
fn e0_index(i: u32) -> u32 {
    return u32(i32(i));
}
fn e1_index(i: u32) -> u32 {
    return u32(i32((i % 7u)));
}
fn e2_index(i: u32) -> u32 {
    return u32(0i);
}
alias e0_t = f32;
fn e0_at(i: u32) -> f32 { return e0[i]; }
alias e1_t = f32;
fn e1_at(i: u32) -> f32 { return e1[i]; }
alias e2_t = f32;
fn e2_at(i: u32) -> f32 { return e2[i]; }
alias y_t = f32;
fn y_at(i: u32) -> bool { return extractBits(y[i / 4u], (i % 4u) * 8u, 8u) != 0u; }
fn step0(x: f32, y: f32) -> f32 { return x * y; }
fn step1(x: f32, y: f32) -> bool { return x < y; }
fn fused(v: y_t, i: u32) -> bool {
    let e0_value = e0_at(e0_index(i));
    let e1_value = e1_at(e1_index(i));
    let e2_value = e2_at(e2_index(i));
    let s0_value = step0(e0_value, e1_value);
    let s1_value = step1(s0_value, e2_value);
    return s1_value;
}
// y[i] = the fused steps, which read their operands themselves.
fn element(i: u32) -> y_t { return y_t(); }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    let i = id.x + id.y * n.x * 64u;
    if (i >= 9u) { return; }
    var word = 0u;
    for (var j = 0u; j < 4u; j++) {
        let k = i * 4u + j;
        if (k < 35u) { word |= select(0u, 1u, fused(element(k), k)) << (j * 8u); }
    }
    y[i] = word;
}
