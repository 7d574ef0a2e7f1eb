// y = (x - mean) / spread * scale + bias, with mean and spread of each row of x (two passes: the mean first). TEAM invocations of
// a workgroup share a row; a workgroup has WORKGROUP_SIZE / TEAM rows.
// Expects: ROWS, N (row length), TEAM (a power of two), ADJACENT (neighbouring invocations take neighbouring rows, not elements),
// the position in x of a row (row_start) and of an element within it (row_step), CENTER (false: mean = 0), EPSILON,
// SPREAD (0 sqrt(mean d^2 + EPSILON), 1 sqrt(mean d^2) + EPSILON, 2 sqrt(sum d^2), 3 sum |d|, for d = x - mean), and where
// element i of x finds its scale and bias (scale_index, bias_index). Sums go through partial sums of 32.
// Source: ONNX LayerNormalization, InstanceNormalization, GroupNormalization, RMSNormalization, MeanVarianceNormalization,
// LpNormalization.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;

fn team_sum(v: f32, first: u32, member: u32) -> f32 {
    workgroupBarrier();
    parts[first + member] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[first + member] += parts[first + member + s]; }
    }
    workgroupBarrier();
    return parts[first];
}

fn term(d: f32, deviation: bool) -> f32 {
    if (!deviation) { return d; }
    return select(d * d, abs(d), SPREAD == 3u);
}

// The member's share of the sum over n elements of x - mean, or of its square or magnitude.
fn share(start: u32, member: u32, n: u32, mean: f32, deviation: bool) -> f32 {
    var sum = 0.0;
    var k = member;
    while (k < n) {
        var part = 0.0;
        for (var j = 0u; j < 32u && k < n; j++) {
            part += term(x_at(start + row_step(k)) - mean, deviation);
            k += TEAM;
        }
        sum += part;
    }
    return sum;
}

fn spread(sum: f32) -> f32 {
    if (SPREAD == 0u) { return sqrt(sum / f32(N) + EPSILON); }
    if (SPREAD == 1u) { return sqrt(sum / f32(N)) + EPSILON; }
    let norm = select(sum, sqrt(sum), SPREAD == 2u);
    return select(norm, 1.0, norm == 0.0);
}

fn group_main(group: u32, lane: u32) {
    let slot = select(lane / TEAM, lane % PER_GROUP, ADJACENT);
    let member = select(lane % TEAM, lane / PER_GROUP, ADJACENT);
    let row = group * PER_GROUP + slot;
    let n = select(0u, N, row < ROWS);
    let start = row_start(min(row, ROWS - 1u));
    var mean = 0.0;
    if (CENTER) { mean = team_sum(share(start, member, n, 0.0, false), slot * TEAM, member) / f32(N); }
    let divisor = spread(team_sum(share(start, member, n, mean, true), slot * TEAM, member));
    for (var k = member; k < n; k += TEAM) {
        let i = start + row_step(k);
        var v = (x_at(i) - mean) / divisor;
        if (HAS_SCALE) { v *= scale_at(scale_index(i)); }
        if (HAS_BIAS) { v += bias_at(bias_index(i)); }
        y_set(i, v);
    }
}
