// y[batch, j] = ALPHA * sum over k of w[j, k] * v[k] + BETA * c, where rows of w lie together: ROWS outputs a workgroup, each summed by
// a subgroup (SUBGROUPS) or by WORKGROUP_SIZE / ROWS invocations, with four loads of four elements under way.
// Expects: w, v (as vectors of four elements), c?, y; w_base, v_base (offset of a batch), c_index (over y); COUNT, K4 and W_OUTER4
// (vectors of a row, and from one to the next), BLOCKS, ALPHA, BETA.
const TEAM: u32 = WORKGROUP_SIZE / ROWS;
#if not SUBGROUPS
var<workgroup> sums: array<f32, WORKGROUP_SIZE>;
#end

// The share of one of `team` invocations in the sum.
fn share(w_start: u32, v_start: u32, member: u32, team: u32) -> f32 {
#for i in 4
    var sum$i = vec4<f32>();
#end
#let loads = 128 // W_BITS
    var k = member;
    for (; k + $(loads - 1)u * team < K4; k += $(loads)u * team) {
#for i in loads
        let w$i = w_four(w_start + k + $(i)u * team);
#end
#for i in loads
        sum$(i % 4) = fma(w_of_four(w$i), v_at4(v_start + k + $(i)u * team), sum$(i % 4));
#end
    }
    for (; k < K4; k += team) { sum0 = fma(w_at4(w_start + k), v_at4(v_start + k), sum0); }
    let total = (sum0 + sum1) + (sum2 + sum3);
    return (total.x + total.y) + (total.z + total.w);
}

fn store(i: u32, sum: f32) {
    var v = ALPHA * sum;
    if (HAS_C) { v += BETA * c_at(c_index(i)); }
    y_set(i, v);
}

fn group_main(group: u32, lane: u32) {
    let batch = group / BLOCKS;
    let first = group % BLOCKS * ROWS;
    let w_start = w_base(batch) / 4u;
    let v_start = v_base(batch) / 4u;
#if SUBGROUPS
    for (var r = subgroup_id; r < ROWS; r += subgroups) {
        let j = first + r;
        let sum = subgroupAdd(share(w_start + min(j, COUNT - 1u) * W_OUTER4, v_start, subgroup_lane, subgroup_size));
        if (subgroup_lane == 0u && j < COUNT) { store(batch * COUNT + j, sum); }
    }
#else
    let j = first + lane / TEAM;
    let member = lane % TEAM;
    sums[lane] = share(w_start + min(j, COUNT - 1u) * W_OUTER4, v_start, member, TEAM);
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { sums[lane] += sums[lane + s]; }
    }
    if (member == 0u && j < COUNT) { store(batch * COUNT + j, sums[lane]); }
#end
}
