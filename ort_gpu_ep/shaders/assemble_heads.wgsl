// y[b, head, row, d]: rows of a cache with those of this step behind them, and a bias on the latter; d from WIDTH on is padding.
// One invocation per element.
// Expects: x (of a batch, a head, a row: X_B, X_H, X_S, from X_FIRST on; a batch from BATCHES on is the same one X_PART further), past? (likewise
// P_B, P_H, P_S; PAST rows), bias? (of a head's elements, from BIAS_FIRST on), y ([.., HEADS, ROWS, STORED]).
// Source: Attention and MultiHeadAttention of ONNX and ONNX Runtime.
fn element(i: u32) -> y_t {
    let d = i % STORED;
    let row = i / STORED % ROWS;
    let head = i / (STORED * ROWS) % HEADS;
    let b = i / (STORED * ROWS * HEADS);
    if (d >= WIDTH) { return 0.0; }
#if HAS_PAST
    if (row < PAST) { return past_at(b * P_B + head * P_H + row * P_S + d); }
    let token = row - PAST;
#else
    let token = row;
#end
    let x = x_at(b % BATCHES * X_B + b / BATCHES * X_PART + head * X_H + token * X_S + X_FIRST + d);
#if HAS_BIAS
    return x + bias_at(BIAS_FIRST + head * WIDTH + d);
#else
    return x;
#end
}
