// Writes the rows of an update into y, which holds a cache: of each batch from a place of its own on; all else stays as it is there. A batch
// whose rows do not fit writes nothing. One invocation per element of the update, SIZE in all.
// Expects: update, places? (64 bits, one for each batch), y, and the constants that tensor_scatter.wgsl describes. Source: ONNX TensorScatter.
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= SIZE) { return; }
    let k = i / INNER % COUNT;
    let outer = i / (INNER * COUNT);
    var first = 0u;
#if HAS_PLACES
    let words = places_pair(outer * LENGTH * INNER / BATCH);
    first = words.x;
    if (words.y != 0u || bitcast<i32>(first) < 0 || (!CIRCULAR && (first > LENGTH || first + COUNT > LENGTH))) {
        out_of_range();
        return;
    }
#end
    y_set((outer * LENGTH + (first + k) % LENGTH) * INNER + i % INNER, update_at(i));
}
