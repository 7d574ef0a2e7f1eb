// What makes bytes of the sums of a product, by its outputs c (filters, columns): y[c] = bias, y[OUTPUTS + c] = the bits of
// a_scale * b_scale / y_scale, y[2 OUTPUTS] = y's zero point.
// Expects: a_scale, b_scale, y_scale, y_zp, c?; OUTPUTS, B_STRIDE (0: one b_scale for all).
fn element(i: u32) -> y_t {
    if (i == 2u * OUTPUTS) { return bitcast<u32>(i32(y_zp_at(0u))); }
    if (i >= OUTPUTS) { return bitcast<u32>(divide_f32(a_scale_at(0u) * b_scale_at((i - OUTPUTS) * B_STRIDE), y_scale_at(0u)).x); }
    return bitcast<u32>(i32(c_at(i)));
}
