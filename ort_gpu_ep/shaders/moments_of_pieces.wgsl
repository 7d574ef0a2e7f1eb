// The mean of each piece of a row, and the sum of the squares of what its elements are away from it: what normalize_pieces.wgsl joins. A
// workgroup has a piece of PIECE4 vectors (a row's last may be shorter), which stay in registers between the passes.
// Expects: x (as vectors of four elements), moments [rows, PIECES, 2]; N4 (vectors of a row), PIECE4, PIECES, HELD, PER_GROUP = 1.
#include team.wgsl

fn sum_of(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }

fn group_main(group: u32, lane: u32) {
    let first = group % PIECES * PIECE4;
    let count = min(PIECE4, N4 - first);
    let start = group / PIECES * N4 + first;
    var sum = vec4<f32>();
#for h in HELD
    var x$h = vec4<f32>();
    if (lane + $(h)u * TEAM < count) { x$h = x_at4(start + lane + $(h)u * TEAM); }
    sum += x$h;
#end
    let mean = whole_sum(sum_of(sum), lane) / f32(4u * count);
    var squares = vec4<f32>();
#for h in HELD
    if (lane + $(h)u * TEAM < count) {
        x$h -= mean;
        squares = fma(x$h, x$h, squares);
    }
#end
    let away = whole_sum(sum_of(squares), lane);
    if (lane == 0u) {
        moments_set(2u * group, mean);
        moments_set(2u * group + 1u, away);
    }
}
