// y = (x - mean) / sqrt(variance + EPSILON) * scale + bias of each row, of which moments_of_pieces.wgsl has those of its pieces. A workgroup
// has a piece, and joins the moments of all pieces of its row, one a lane.
// Expects: x, y (as vectors of four elements), moments [rows, PIECES, 2], scale?, bias?; N4 (vectors of a row), PIECE4, PIECES, EPSILON,
// CHANNELS PER_ROW PLANE4, PER_GROUP = 1.
// Source: Chan, Golub, LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.
#include team.wgsl
#include normalized.wgsl

fn group_main(group: u32, lane: u32) {
    let row = group / PIECES;
    var own = vec2<f32>();
    var count = 0.0;
    if (lane < PIECES) {
        own = vec2<f32>(moments_at(2u * (row * PIECES + lane)), moments_at(2u * (row * PIECES + lane) + 1u));
        count = f32(4u * min(PIECE4, N4 - lane * PIECE4));
    }
    let mean = whole_sum(own.x * count, lane) / f32(4u * N4);
    let d = own.x - mean;
    let squares = whole_sum(fma(d * d, count, own.y), lane);
    let scale = 1.0 / sqrt(squares / f32(4u * N4) + EPSILON);
    let first = group % PIECES * PIECE4;
    let end = min(first + PIECE4, N4);
    for (var k = first + lane; k < end; k += WORKGROUP_SIZE) { store(row, k, (x_at4(row * N4 + k) - mean) * scale); }
}
