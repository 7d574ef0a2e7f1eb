// y[t, b] = x[lengths[b] - 1 - t, b] for t < lengths[b], else x[t, b]; an invocation per element.
// Expects: x, lengths (64 bits), TIMES, TIME_STEP, BATCHES, BATCH_STEP (sizes and strides of the two axes). Bound raw.
fn element(i: u32) -> y_t {
    let t = (i / TIME_STEP) % TIMES;
    let words = vec2<u32>(lengths_at((i / BATCH_STEP) % BATCHES));
    let length = min(words.x, TIMES);
    if (words.y != 0u || words.x > TIMES) { wrong_length(); }
    if (t >= length) { return x_at(i); }
    return x_at(i - t * TIME_STEP + (length - 1u - t) * TIME_STEP);
}
