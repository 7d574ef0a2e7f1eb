// y[row, column] = 1 where column - row is DIAGONAL, else 0; an invocation per element.
// Expects: COLUMNS, DIAGONAL.
fn element(i: u32) -> y_t {
    return y_t(i32(i % COLUMNS) - i32(i / COLUMNS) == i32(DIAGONAL));
}
