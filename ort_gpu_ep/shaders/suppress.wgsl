// kept[line] = the boxes of a batch and class that are kept, in order, numbers[line] = how many: again and again the box with the highest
// score of those that are left, of equals the first, and all that overlap it by more than IOU are left no more. A workgroup per line.
// Expects: boxes [B, S, 4], scores [B, C, S], left (room for a word of each score), BOXES (S), CLASSES (C), MOST (kept at most), CENTERED
// (boxes are center and size, else two corners), IOU, LIMITED (scores up to LIMIT are none).
// Source: ONNX NonMaxSuppression; what counts as overlap, onnxruntime, non_max_suppression_helper.h.
var<workgroup> scores_of: array<f32, WORKGROUP_SIZE>;
var<workgroup> places: array<u32, WORKGROUP_SIZE>;
var<workgroup> best: u32;

// Lowest and highest corner, (x, y, x, y).
fn corners(at: u32) -> vec4<f32> {
    let b = vec4<f32>(boxes_at(at), boxes_at(at + 1u), boxes_at(at + 2u), boxes_at(at + 3u));
    if (CENTERED) { return vec4<f32>(b.xy - b.zw / 2.0, b.xy + b.zw / 2.0); }
    return vec4<f32>(min(b.y, b.w), min(b.x, b.z), max(b.y, b.w), max(b.x, b.z));
}

fn overlap(a: vec4<f32>, b: vec4<f32>) -> bool {
    let inner = min(a.zw, b.zw) - max(a.xy, b.xy);
    if (!(inner.x > 0.0 && inner.y > 0.0)) { return false; }
    let both = inner.x * inner.y;
    let of_a = (a.z - a.x) * (a.w - a.y);
    let of_b = (b.z - b.x) * (b.w - b.y);
    let whole = of_a + of_b - both;
    if (of_a <= 0.0 || of_b <= 0.0 || whole <= 0.0) { return false; }
    return divide_f32(both, whole).x > IOU;
}

fn group_main(group: u32, lane: u32) {
    let first = group / CLASSES * BOXES * 4u;
    let line = group * BOXES;
    for (var k = lane; k < BOXES; k += WORKGROUP_SIZE) {
        left_set(line + k, select(0u, 1u, !LIMITED || scores_at(line + k) > LIMIT));
    }
    var found = 0u;
    for (var n = 0u; n < MOST; n++) {
        var score = 0.0;
        var place = BOXES;
        for (var k = lane; k < BOXES; k += WORKGROUP_SIZE) {
            if (left_at(line + k) == 1u && (place == BOXES || scores_at(line + k) > score)) {
                score = scores_at(line + k);
                place = k;
            }
        }
        scores_of[lane] = score;
        places[lane] = place;
        for (var s = WORKGROUP_SIZE / 2u; s > 0u; s /= 2u) {
            workgroupBarrier();
            if (lane < s) {
                let other = places[lane + s];
                let mine = places[lane];
                let better = scores_of[lane + s] > scores_of[lane] || (scores_of[lane + s] == scores_of[lane] && other < mine);
                if (other < BOXES && (mine == BOXES || better)) {
                    scores_of[lane] = scores_of[lane + s];
                    places[lane] = other;
                }
            }
        }
        if (lane == 0u) { best = places[0]; }
        let taken = min(workgroupUniformLoad(&best), BOXES);
        if (taken == BOXES) { break; }
        if (lane == 0u) { kept_set(group * MOST + n, taken); }
        found = n + 1u;
        let box = corners(first + taken * 4u);
        for (var k = lane; k < BOXES; k += WORKGROUP_SIZE) {
            if (k == taken || (left_at(line + k) == 1u && overlap(box, corners(first + k * 4u)))) { left_set(line + k, 0u); }
        }
    }
    if (lane == 0u) { numbers_set(group, found); }
}
