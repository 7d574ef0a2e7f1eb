// y[.., row, column] = x[.., row, column] on one side of diagonal DIAGONAL, else zero; an invocation per element.
// Expects: x, ROWS, COLUMNS, UPPER, DIAGONAL (column - row of the diagonal that is kept).
fn element(i: u32) -> y_t {
    let above = i32(i % COLUMNS) - i32((i / COLUMNS) % ROWS) - i32(DIAGONAL);
    if (select(above <= 0, above >= 0, UPPER)) { return x_at(i); }
    return y_t();
}
