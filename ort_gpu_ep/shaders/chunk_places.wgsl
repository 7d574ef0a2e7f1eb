// chosen = the places of the true flags, in order. A workgroup per chunk of 4 WORKGROUP_SIZE, of which the lanes have four neighbours each.
// Expects: flags (bool), starts (how many are true before each chunk), N (flags in all).
#include scanned.wgsl

fn group_main(group: u32, lane: u32) {
    let first = (group * WORKGROUP_SIZE + lane) * 4u;
    var own = 0u;
    for (var k = 0u; k < 4u; k++) {
        if (first + k < N && flags_at(first + k)) { own += 1u; }
    }
    var place = starts_at(group) + scanned(own, lane) - own;
    for (var k = 0u; k < 4u; k++) {
        if (first + k < N && flags_at(first + k)) {
            chosen_set(min(place, N - 1u), first + k);
            place += 1u;
        }
    }
}
