// y[m]: the sum of the weights of column m, a 32-bit integer's bits. Expects: w [K, M]; M K, SHIFT (128 for unsigned bytes, which count less it).
fn element(m: u32) -> y_t {
    var sum = 0i;
    for (var k = 0u; k < K; k++) { sum += i32(w_at(k * M + m)) - i32(SHIFT); }
    return bitcast<u32>(sum);
}
