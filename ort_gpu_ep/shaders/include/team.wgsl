// What a team makes of its lanes' values, each lane is given: a subgroup of its own (SUBGROUPS, PER_GROUP > 1), else TEAM neighbours of the
// workgroup. Every lane of the workgroup calls it.
// Expects: WORKGROUP_SIZE PER_GROUP (teams of a workgroup) SUBGROUPS.
const TEAM: u32 = WORKGROUP_SIZE / PER_GROUP;
#if not SUBGROUPS or PER_GROUP == 1
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;
#end

fn whole_sum(v: f32, lane: u32) -> f32 {
#if SUBGROUPS
    let own = subgroupAdd(v);
#if PER_GROUP > 1
    return own;
#else
    workgroupBarrier();
    if (subgroup_lane == 0u) { parts[subgroup_id] = own; }
    workgroupBarrier();
    var sum = 0.0;
    for (var k = subgroup_lane; k < subgroups; k += subgroup_size) { sum += parts[k]; }
    return subgroupAdd(sum);
#end
#else
    workgroupBarrier();
    parts[lane] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane % TEAM < s) { parts[lane] += parts[lane + s]; }
    }
    workgroupBarrier();
    return parts[lane - lane % TEAM];
#end
}

fn whole_max(v: f32, lane: u32) -> f32 {
#if SUBGROUPS
    let own = subgroupMax(v);
#if PER_GROUP > 1
    return own;
#else
    workgroupBarrier();
    if (subgroup_lane == 0u) { parts[subgroup_id] = own; }
    workgroupBarrier();
    var top = own;
    for (var k = subgroup_lane; k < subgroups; k += subgroup_size) { top = max(top, parts[k]); }
    return subgroupMax(top);
#end
#else
    workgroupBarrier();
    parts[lane] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane % TEAM < s) { parts[lane] = max(parts[lane], parts[lane + s]); }
    }
    workgroupBarrier();
    return parts[lane - lane % TEAM];
#end
}
