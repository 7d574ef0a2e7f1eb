// y = where each expert's rows begin ([EXPERTS + 1], the last: how many rows there are), then the rows by expert, each expert's in order. A workgroup per
// expert.
// Expects: chosen (the expert of each row), y (int32); COUNT (of rows) EXPERTS.
#include scanned.wgsl

fn group_main(group: u32, lane: u32) {
    var before = 0u;
    for (var at = lane; at < COUNT; at += WORKGROUP_SIZE) { before += select(0u, 1u, u32(chosen_at(at)) < group); }
    let sum = scanned(before, lane);
    sums[lane] = sum;
    workgroupBarrier();
    var place = sums[WORKGROUP_SIZE - 1u];
    workgroupBarrier();
    if (lane == 0u) { y_set(group, i32(place)); }
    if (lane == 0u && group == EXPERTS - 1u) { y_set(EXPERTS, i32(COUNT)); }
    for (var first = 0u; first < COUNT; first += WORKGROUP_SIZE) {
        let at = first + lane;
        var own = 0u;
        if (at < COUNT) { own = select(0u, 1u, u32(chosen_at(at)) == group); }
        let upto = scanned(own, lane);
        sums[lane] = upto;
        workgroupBarrier();
        if (own == 1u) { y_set(EXPERTS + place + upto, i32(at)); }
        place += sums[WORKGROUP_SIZE - 1u];
        workgroupBarrier();
    }
}
