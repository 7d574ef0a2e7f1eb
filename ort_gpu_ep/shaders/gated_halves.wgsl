// y[r, i] = gated(gate, up), where x[r] has gates and ups in turn (GATING = 1), or D gates before D ups. One invocation per element.
// Expects: x ([.., 2 D]), y ([.., D]), and what gated.wgsl does.
#include gated.wgsl

fn element(i: u32) -> y_t {
    let row = i / D * 2u * D;
    let d = i % D;
    return gated(x_at(row + select(d, 2u * d, GATING == 1u)), x_at(row + select(d + D, 2u * d + 1u, GATING == 1u)));
}
