// packed = R with the hidden unit innermost, then the biases, then all of p: what a recurrent layer reads, in its order.
// Expects: r [directions, GATES, H, H], b? [directions, 2, GATES, H], p?, packed; r_index, R_SIZE, P_AT (where p begins),
//   LINEAR (the GRU scales R h + Rb of its last gate, so that Rb is not added to Wb but kept as one plane more).
fn bias(i: u32) -> f32 {
    let plane = (i / H) % PLANES;
    let d = i / H / PLANES;
    let at = (d * 2u * GATES + min(plane, GATES - 1u)) * H + i % H;
    if (plane == GATES) { return b_at(at + GATES * H); }
    if (LINEAR && plane == GATES - 1u) { return b_at(at); }
    return b_at(at) + b_at(at + GATES * H);
}

fn element(i: u32) -> packed_t {
    if (i < R_SIZE) { return r_at(r_index(i)); }
    if (i < P_AT) { return bias(i - R_SIZE); }
    return p_at(i - P_AT);
}
