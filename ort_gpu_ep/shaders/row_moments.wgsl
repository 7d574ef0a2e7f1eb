// mean[row], and inv_std[row] = 1 / sqrt(variance + EPSILON), of each contiguous row of x. A team of invocations of a
// workgroup shares a row; a workgroup has PER_GROUP rows.
// Expects: ROWS, N (row length), PER_GROUP (a power of two), SUBGROUPS (false), EPSILON. Source: ONNX LayerNormalization, outputs Mean and InvStdDev.
#include team.wgsl

fn group_main(group: u32, lane: u32) {
    let row = group * PER_GROUP + lane / TEAM;
    let n = select(0u, N, row < ROWS);
    var sum = 0.0;
    for (var k = lane % TEAM; k < n; k += TEAM) { sum += x_at(row * N + k); }
    let center = whole_sum(sum, lane) / f32(N);
    sum = 0.0;
    for (var k = lane % TEAM; k < n; k += TEAM) {
        let d = x_at(row * N + k) - center;
        sum += d * d;
    }
    let variance = whole_sum(sum, lane) / f32(N);
    if (lane % TEAM == 0u && row < ROWS) {
        mean_set(row, center);
        inv_std_set(row, 1.0 / sqrt(variance + EPSILON));
    }
}
