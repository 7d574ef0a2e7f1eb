// counts[c] = how many of the flags of chunk c are true. A workgroup per chunk of 4 WORKGROUP_SIZE.
// Expects: flags (bool), N (flags in all).
var<workgroup> sums: array<u32, WORKGROUP_SIZE>;

fn group_main(group: u32, lane: u32) {
    var mine = 0u;
    for (var k = 0u; k < 4u; k++) {
        let at = (group * WORKGROUP_SIZE + lane) * 4u + k;
        if (at < N && flags_at(at)) { mine += 1u; }
    }
    sums[lane] = mine;
    for (var s = WORKGROUP_SIZE / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane < s) { sums[lane] += sums[lane + s]; }
    }
    if (lane == 0u) { counts_set(group, sums[0]); }
}
