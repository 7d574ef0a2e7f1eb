// y[r] = row r of a, then row r of b: two tensors joined along an axis, each seen as rows of the elements from that axis on.
// Expects: a, b, A_ROW and B_ROW (elements of a row of each).
fn element(i: u32) -> y_t {
    let row = i / (A_ROW + B_ROW);
    let column = i % (A_ROW + B_ROW);
    if (column < A_ROW) { return a_at(row * A_ROW + column); }
    return b_at(row * B_ROW + column - A_ROW);
}
