// Cross-entropy of rows and its gradient: losses[r] = -log softmax(z[r])[label] weight[r], dz = (softmax(z) - onehot(label)) weight.
// TEAM invocations of a workgroup share a row; a workgroup has WORKGROUP_SIZE / TEAM rows.
// Expects: z [ROWS, N], label (i32) [ROWS], weight [ROWS], TEAM (a power of two). Source: the body of SoftmaxCrossEntropy in
// training/functions.py.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;

fn group_main(group: u32, lane: u32) {
    let slot = lane / TEAM;
    let member = lane % TEAM;
    let row = group * PER_GROUP + slot;
    let n = select(0u, N, row < ROWS);
    let at = min(row, ROWS - 1u) * N;
    var top = -inf_f32();
    for (var k = member; k < n; k += TEAM) { top = max(top, z_at(at + k)); }
    parts[lane] = top;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[lane] = max(parts[lane], parts[lane + s]); }
    }
    workgroupBarrier();
    top = parts[slot * TEAM];
    workgroupBarrier();
    var sum = 0.0;
    for (var k = member; k < n; k += TEAM) { sum += exp_f32(z_at(at + k) - top); }
    parts[lane] = sum;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[lane] += parts[lane + s]; }
    }
    workgroupBarrier();
    let logs = log_f32(parts[slot * TEAM]);
    if (row >= ROWS) { return; }
    let label = u32(label_at(row));
    let weight = weight_at(row);
    for (var k = member; k < n; k += TEAM) {
        let log_p = z_at(at + k) - top - logs;
        let hit = k == label;
        dz_set(at + k, (exp_f32(log_p) - select(0.0, 1.0, hit)) * weight);
        if (hit) { losses_set(row, -log_p * weight); }
    }
}
