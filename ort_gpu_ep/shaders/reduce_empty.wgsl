// y[i] = what a reduction over no elements gives. Expects: KIND (0: 0, 1: 1, 2: -inf, 3: +inf, 4: NaN). Source: ONNX Reduce*.
fn element(i: u32) -> y_t {
    if (KIND == 1u) { return y_t(1); }
    if (KIND == 2u) { return y_t(-inf_f32()); }
    if (KIND == 3u) { return y_t(inf_f32()); }
    if (KIND == 4u) { return y_t(nan_f32()); }
    return y_t(0);
}
