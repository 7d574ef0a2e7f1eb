// starts[c] = the sum of counts before c; count[0] = that of all. One workgroup: a scan of WORKGROUP_SIZE counts on top of the sum so far.
// Expects: counts, CHUNKS.
#include scanned.wgsl

fn group_main(group: u32, lane: u32) {
    var before = 0u;
    for (var first = 0u; first < CHUNKS; first += WORKGROUP_SIZE) {
        let at = first + lane;
        var own = 0u;
        if (at < CHUNKS) { own = counts_at(at); }
        let sum = scanned(own, lane);
        sums[lane] = sum;
        workgroupBarrier();
        if (at < CHUNKS) { starts_set(at, before + sum - own); }
        before += sums[WORKGROUP_SIZE - 1u];
        workgroupBarrier();
    }
    if (lane == 0u) { count_set(0u, before); }
}
