// Element i of a tensor of scales, one for each block of codes, from the order of interleave_scales.wgsl: its inverse.
// Expects: scales, y; N (rows) PER BLOCKS, BLOCK_FIRST (the model has block after block of a row, not row after row of a block).
fn element(i: u32) -> y_t {
    let row = select(i % N, i / BLOCKS, BLOCK_FIRST);
    let block = select(i / N, i % BLOCKS, BLOCK_FIRST);
    return y_t(scales_at((row / PER * BLOCKS + block) * PER + row % PER));
}
