// For each of PARTS parts of an image the power of two of line_scales.wgsl. The least of an image's parts is the image's own.
// Expects: x (as vectors with FOURS), SIZE of an image and PER of a part in what x is bound by; scales [images, PARTS].
#include scale_of.wgsl
var<workgroup> most: atomic<u32>;

fn grid_main(group: vec3<u32>, lane: u32) {
    let first = group.y * SIZE;
    let end = min((group.x + 1u) * PER, SIZE);
    var largest = 0u;
    for (var k = group.x * PER + lane; k < end; k += $(4 * WORKGROUP_SIZE)u) {
#for u in 4
        var v$u = vec4<f32>();
#if FOURS
        if (k + $(u * WORKGROUP_SIZE)u < end) { v$u = x_at4(first + k + $(u * WORKGROUP_SIZE)u); }
#else
        if (k + $(u * WORKGROUP_SIZE)u < end) { v$u.x = x_at(first + k + $(u * WORKGROUP_SIZE)u); }
#end
#end
        largest = max(largest, max(max(finite_bits(v0), finite_bits(v1)), max(finite_bits(v2), finite_bits(v3))));
    }
    if (lane == 0u) { atomicStore(&most, 0u); }
    workgroupBarrier();
    atomicMax(&most, largest);
    workgroupBarrier();
    if (lane == 0u) { scales_set(group.y * PARTS + group.x, scale_of(atomicLoad(&most), 0)); }
}
