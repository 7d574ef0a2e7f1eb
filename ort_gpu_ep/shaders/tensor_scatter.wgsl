// y = a cache with the rows of an update written into it, of each batch from a place of its own on. One invocation per element. Bound raw.
// Expects: past, update, places? (64 bits, one for each batch), y; INNER (elements of a row), LENGTH (rows of the cache), COUNT (of the update), BATCH
// (elements of a batch of the cache), CIRCULAR (rows past the end begin again). Source: ONNX TensorScatter.
fn element(i: u32) -> y_t {
    let row = i / INNER % LENGTH;
    var first = 0;
#if HAS_PLACES
    let words = places_at(i / BATCH);
    first = bitcast<i32>(words.x);
    if (first < 0 || bitcast<i32>(words.y) != 0 || (!CIRCULAR && u32(first) + COUNT > LENGTH)) { out_of_range(); }
    first = clamp(first, 0, select(i32(LENGTH - min(COUNT, LENGTH)), 0x3fffffff, CIRCULAR)) % i32(LENGTH);
#end
    let k = (row + LENGTH - u32(first)) % LENGTH;
    if (k >= COUNT) { return past_at(i); }
    return update_at((i / (INNER * LENGTH) * COUNT + min(k, COUNT - 1u)) * INNER + i % INNER);
}
