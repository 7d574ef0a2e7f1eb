// y[b, head, row]: the rows that a cache of CAPACITY keeps, of x, which holds the ROWS that this step attended to. What is behind them is 0.
// Expects: x ([BATCH, HEADS, ROWS, HEAD]), lengths ([BATCH]: tokens with this step, less one), y ([BATCH, HEADS, CAPACITY, HEAD]);
// ROWS HEADS HEAD SEQUENCE TOTAL FIRST CAPACITY WINDOW.
#include tokens_before.wgsl
#include resident_rows.wgsl

fn element(i: u32) -> y_t {
    let row = i / HEAD % CAPACITY;
    let b = i / (HEAD * CAPACITY * HEADS);
    let before = tokens_before(b);
#if FIRST
    let tokens = u32(clamp(lengths_at(b) + 1, 1, i32(SEQUENCE)));
#else
    let tokens = before + SEQUENCE;
#end
    let kept = resident(tokens);
    if (row >= kept) { return y_t(0); }
    let from_row = (tokens - kept + row) - (before - resident(before));
    return x_at((i / (HEAD * CAPACITY) * ROWS + min(from_row, ROWS - 1u)) * HEAD + i % HEAD);
}
