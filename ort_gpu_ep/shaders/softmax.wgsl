// Softmax, its logarithm, or logsumexp of rows. TEAM invocations of a workgroup share a row; a workgroup has WORKGROUP_SIZE / TEAM rows.
// Expects: ROWS, N (row length), TEAM (a power of two), ADJACENT (neighbouring invocations take neighbouring rows, not elements),
// KIND (0 softmax, 1 logsoftmax, 2 logsumexp, 3 softmax, of a row of minus infinities zeros), and the position in x of a row (row_start) and of an element within it (row_step).
// Source: ONNX Softmax, LogSoftmax, ReduceLogSumExp.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;

fn team_max(v: f32, first: u32, member: u32) -> f32 {
    parts[first + member] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[first + member] = max(parts[first + member], parts[first + member + s]); }
    }
    workgroupBarrier();
    let result = parts[first];
    workgroupBarrier();
    return result;
}

fn team_sum(v: f32, first: u32, member: u32) -> f32 {
    parts[first + member] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[first + member] += parts[first + member + s]; }
    }
    workgroupBarrier();
    return parts[first];
}

fn group_main(group: u32, lane: u32) {
    let slot = select(lane / TEAM, lane % PER_GROUP, ADJACENT);
    let member = select(lane % TEAM, lane / PER_GROUP, ADJACENT);
    let row = group * PER_GROUP + slot;
    let n = select(0u, N, row < ROWS);
    let at = row_start(min(row, ROWS - 1u));
    var top = -inf_f32();
    for (var k = member; k < n; k += TEAM) { top = max(top, x_at(at + row_step(k))); }
    top = team_max(top, slot * TEAM, member);
    if (KIND >= 2u && is_inf_f32(top)) { top = 0.0; }
    var sum = 0.0;
    var k = member;
    while (k < n) {
        var part = 0.0;
        for (var j = 0u; j < 32u && k < n; j++) {
            part += exp_f32(x_at(at + row_step(k)) - top);
            k += TEAM;
        }
        sum += part;
    }
    sum = team_sum(sum, slot * TEAM, member);
    if (KIND == 2u) {
        if (member == 0u && row < ROWS) { y_set(row, top + log_f32(sum)); }
        return;
    }
    let shift = select(0.0, log_f32(sum), KIND == 1u);
    for (var k = member; k < n; k += TEAM) {
        let i = at + row_step(k);
        let v = x_at(i) - top;
        if (KIND == 1u) { y_set(i, v - shift); } else { y_set(i, select(exp_f32(v) / sum, 0.0, KIND == 3u && sum == 0.0)); }
    }
}
