// packed [GATES, H, H] = each gate's block of the recurrent weights transposed: what a unit gives to all of a gate lies together.
// Expects: r [GATES * H, H], or without the last gate, whose block rh is; packed.
fn element(i: u32) -> packed_t {
    let k = i % H;
    let at = (i / (H * H) * H + k) * H + i / H % H;
    if (HAS_RH && i >= (GATES - 1u) * H * H) { return rh_at(at - (GATES - 1u) * H * H); }
    return r_at(at);
}
