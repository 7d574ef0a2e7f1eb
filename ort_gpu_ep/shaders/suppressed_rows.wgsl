// y = (batch, class, box) of each box that is kept, as int64 (low word, high word), line by line. One invocation for each that may be.
// Expects: numbers (kept of a line), starts (kept of the lines before), kept, LINES (batches times classes), CLASSES, MOST. Bound raw.
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    let line = i / MOST;
    if (line >= LINES || i % MOST >= numbers_at(line)) { return; }
    let row = min(starts_at(line) + i % MOST, LINES * MOST - 1u);
    y_set(row * 3u, y_t(line / CLASSES, 0u));
    y_set(row * 3u + 1u, y_t(line % CLASSES, 0u));
    y_set(row * 3u + 2u, y_t(kept_at(i), 0u));
}
