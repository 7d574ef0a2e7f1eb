fn block_index(i: u32) -> u32 {
    if (BLOCK == 0u) { return scale_index(i); }
    let along = i / INNER;
    return (along / SIZE * BLOCKS + along % SIZE / max(BLOCK, 1u)) * INNER + i % INNER;
}
