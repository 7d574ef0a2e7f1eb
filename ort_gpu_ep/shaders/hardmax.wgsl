// y[i] = 1 where x[i] is the first maximum of its row, else 0. One invocation per element.
// Expects: N (row length), INNER (elements between two of a row). Source: ONNX Hardmax.
fn element(i: u32) -> y_t {
    let k = i / INNER % N;
    let at = i - k * INNER;
    let v = x_at(i);
    for (var j = 0u; j < N; j++) {
        let other = x_at(at + j * INNER);
        if (other > v || (j < k && other == v)) { return 0.0; }
    }
    return 1.0;
}
