// y[token, d]: the sum of a token's word, its position and its segment. One invocation per element.
// Expects: ids, words ([WORDS, HIDDEN]), positions ([POSITIONS, HIDDEN]), places? (PLACES of them: of each token, or of each in a sequence),
// segment_ids?, segments? ([SEGMENTS, HIDDEN]), y; LENGTH (tokens of a sequence). Of ids of 64 bits the lower 32 count.
// Source: EmbedLayerNormalization of ONNX Runtime.
fn noted(given: i32, rows: u32) -> i32 {
    if (given < 0 || u32(given) >= rows) { out_of_range(); }
    return given;
}

fn element(i: u32) -> y_t {
    let d = i % HIDDEN;
    let token = i / HIDDEN;
#if IDS_BITS == 64
    let id = i32(ids_pair(token).x);
#else
    let id = ids_at(token);
#end
    let word = u32(clamp(noted(id, WORDS), 0, i32(WORDS) - 1));
    var sum = words_at(word * HIDDEN + d);
#if HAS_PLACES
    let place = u32(clamp(noted(places_at(token % PLACES), POSITIONS), 0, i32(POSITIONS) - 1));
#else
    let place = token % LENGTH;
#end
    sum += positions_at(place * HIDDEN + d);
#if HAS_SEGMENTS
#if SEGMENT_IDS_BITS == 64
    let segment_id = i32(segment_ids_pair(token).x);
#else
    let segment_id = segment_ids_at(token);
#end
    let segment = u32(clamp(noted(segment_id, SEGMENTS), 0, i32(SEGMENTS) - 1));
    sum += segments_at(segment * HIDDEN + d);
#end
    return sum;
}
