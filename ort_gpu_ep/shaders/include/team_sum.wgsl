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
