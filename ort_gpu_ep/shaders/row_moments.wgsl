// mean[row], and inv_std[row] = 1 / sqrt(variance + EPSILON), of each contiguous row of x. TEAM invocations of a workgroup share a
// row; a workgroup has WORKGROUP_SIZE / TEAM rows.
// Expects: ROWS, N (row length), TEAM (a power of two), EPSILON. Source: ONNX LayerNormalization, outputs Mean and InvStdDev.
// What TEAM neighbours of a workgroup add up to, each is given. Every lane of the workgroup calls it. Expects: WORKGROUP_SIZE TEAM.
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;

fn team_sum(v: f32, lane: u32) -> f32 {
    workgroupBarrier();
    parts[lane] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane % TEAM < s) { parts[lane] += parts[lane + s]; }
    }
    workgroupBarrier();
    return parts[lane - lane % TEAM];
}

fn group_main(group: u32, lane: u32) {
    let row = group * (WORKGROUP_SIZE / TEAM) + lane / TEAM;
    let n = select(0u, N, row < ROWS);
    var sum = 0.0;
    for (var k = lane % TEAM; k < n; k += TEAM) { sum += x_at(row * N + k); }
    let center = team_sum(sum, lane) / f32(N);
    sum = 0.0;
    for (var k = lane % TEAM; k < n; k += TEAM) {
        let d = x_at(row * N + k) - center;
        sum += d * d;
    }
    let variance = team_sum(sum, lane) / f32(N);
    if (lane % TEAM == 0u && row < ROWS) {
        mean_set(row, center);
        inv_std_set(row, 1.0 / sqrt(variance + EPSILON));
    }
}
