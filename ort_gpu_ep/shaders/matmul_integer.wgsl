// y[batch, m, n] = sum over k of (a[batch, m, k] - a_zp) * (b[batch, k, n] - b_zp), in 32-bit integers. One invocation per element.
// Expects: a, b, a_zp?, b_zp? (0 where left out), a_row, b_column, a_zp_index, b_zp_index (of an output element), K, N.
// Source: ONNX MatMulInteger.
fn element(i: u32) -> y_t {
    let a_first = a_row(i);
    let b_first = b_column(i);
    let a_zero = i32(a_zp_at(a_zp_index(i)));
    let b_zero = i32(b_zp_at(b_zp_index(i)));
    var sum = 0;
    for (var k = 0u; k < K; k++) { sum += (i32(a_at(a_first + k)) - a_zero) * (i32(b_at(b_first + k * N)) - b_zero); }
    return sum;
}
