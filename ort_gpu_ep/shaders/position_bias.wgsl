// y[head, q, k] = table[bucket of k - q, head]: near distances have a bucket each, farther ones share them by the logarithm of the distance, those
// beyond FARTHEST the last. One invocation per element.
// Expects: table (BUCKETS for each head in turn), y; QUERIES, KEYS; EACH (buckets of a direction), BOTH (keys behind the query have the upper half of the
// buckets; else the first), FARTHEST. Source: RelativePositionBias of ONNX Runtime.
fn element(i: u32) -> y_t {
    let k = i32(i % KEYS);
    let q = i32(i / KEYS % QUERIES);
    let head = i / (KEYS * QUERIES);
    let distance = u32(select(max(q - k, 0), abs(q - k), BOTH));
    let near = EACH / 2u;
    var bucket = distance;
    if (distance >= near) {
        let scaled = log_f32(f32(distance) / f32(near)) / log_f32(f32(FARTHEST) / f32(near)) * f32(EACH - near);
        bucket = min(near + u32(max(scaled + 1e-5, 0.0)), EACH - 1u);      // distances whose logarithm is whole are of the farther one
    }
    if (BOTH && k > q) { bucket += EACH; }
    return table_at(head * BUCKETS + bucket);
}
