// Of each token its SLOTS experts, chosen[token, slot], and their parts, shares[token, slot]. A workgroup per token.
// Expects: what include/routed.wgsl does, chosen, shares. Source: MoE and QMoE of ONNX Runtime.
#include routed.wgsl

fn group_main(group: u32, lane: u32) {
    route(group, lane);
    for (var s = lane; s < SLOTS; s += WORKGROUP_SIZE) {
        chosen_set(group * SLOTS + s, i32(routed[s]));
        shares_set(group * SLOTS + s, part_of_slot(group, s));
    }
}
