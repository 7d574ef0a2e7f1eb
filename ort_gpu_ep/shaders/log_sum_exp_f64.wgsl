// y[row] = max x + log sum exp(x - max x) over a row of float64. One invocation per row.
// Expects: N (row length, at least 1), the position in x of a row (row_start) and of an element within it (row_step).
// Source: ONNX ReduceLogSumExp.
fn element(row: u32) -> y_t {
    let at = row_start(row);
    var top = x_at(at);
    for (var k = 1u; k < N; k++) { top = max_f64(top, x_at(at + row_step(k))); }
    if (is_nan_f64(top) || is_inf_f64(top)) { return top; }
    var sum = 0.0lf;
    for (var k = 0u; k < N; k++) { sum += exp_f64(x_at(at + row_step(k)) - top); }
    return top + log_f64(sum);
}
