// y[i] = the determinant of matrix i, by Gauss's elimination with the largest pivot of each column. One invocation per matrix.
// Expects: x, rest (room for the matrices, in which they are eliminated), M.
// Source: ONNX Det.
fn element(i: u32) -> y_t {
    let first = i * M * M;
    for (var k = 0u; k < M * M; k++) { rest_set(first + k, x_at(first + k)); }
    var product = y_t(1);
    for (var k = 0u; k < M; k++) {
        var pivot = k;
        for (var r = k + 1u; r < M; r++) {
            if (abs(rest_at(first + r * M + k)) > abs(rest_at(first + pivot * M + k))) { pivot = r; }
        }
        let largest = rest_at(first + pivot * M + k);
        product *= largest;
        if (largest == y_t(0)) { return product; }
        if (pivot != k) { product = -product; }
        for (var c = k; c < M; c++) {
            let upper = rest_at(first + pivot * M + c);
            rest_set(first + pivot * M + c, rest_at(first + k * M + c));
            rest_set(first + k * M + c, upper);
        }
        for (var r = k + 1u; r < M; r++) {
            let factor = rest_at(first + r * M + k) / largest;
            for (var c = k + 1u; c < M; c++) {
                rest_set(first + r * M + c, rest_at(first + r * M + c) - factor * rest_at(first + k * M + c));
            }
        }
    }
    return product;
}
