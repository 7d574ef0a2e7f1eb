// (1, 1, 1) workgroups
// strided.wgsl
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
fn x_index(i: u32) -> u32 {
    return u32(i32((i % 6u)) * 5i + i32((i / 6u)));
}
alias x_t = u32;
fn x_at(i: u32) -> u32 { return extractBits(x[i / 4u], (i % 4u) * 8u, 8u); }
alias y_t = u32;
fn y_at(i: u32) -> u32 { return extractBits(y[i / 4u], (i % 4u) * 8u, 8u); }
// y[i] = x[x_index(i)]: transpose, slice, broadcast and every other affine reading of one tensor.
// Expects: x, x_index (Strided over y's shape). Bound raw: moves bits of any element type.
fn element(i: u32) -> y_t { return x_at(x_index(i)); }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    let i = id.x + id.y * n.x * 64u;
    if (i >= 8u) { return; }
    var word = 0u;
    for (var j = 0u; j < 4u; j++) {
        let k = i * 4u + j;
        if (k < 30u) { word |= (element(k) & 255u) << (j * 8u); }
    }
    y[i] = word;
}
