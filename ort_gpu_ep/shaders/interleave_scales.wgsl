// Element i of y: the scales of blocks of codes in the order of the words that repack.wgsl interleaves: those of PER neighbouring rows
// together, block after block. Rows past the last have its own.
// POWERS (left out: no): each times the power of two of its row, w_scales.
// Expects: table, y; N (rows) PER BLOCKS, TABLE_ROW TABLE_BLOCK (strides of the table).
#default POWERS = 0
fn element(i: u32) -> y_t {
    let row = min(i / (BLOCKS * PER) * PER + i % PER, N - 1u);
#if POWERS
    return table_at(row * TABLE_ROW + i / PER % BLOCKS * TABLE_BLOCK) * w_scales_at(row);
#else
    return table_at(row * TABLE_ROW + i / PER % BLOCKS * TABLE_BLOCK);
#end
}
