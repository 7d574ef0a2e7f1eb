var<workgroup> sums: array<f32, SHARE * GATES * UNITS * ROWS>;
#if not SUBGROUPS
var<workgroup> parts: array<f32, UNITS * ROWS * WORKGROUP_SIZE>;
#end

// Four elements of a row of R, from element k on, zero past its end; and of a row of the state that a step reads, which begins at element i:
// `before0` and `before1` give an element of the latter.
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

#for first in 2
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
