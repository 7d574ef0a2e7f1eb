// y[row] = position of the row's maximum (or minimum). TEAM invocations of a workgroup share a row; it has WORKGROUP_SIZE / TEAM rows.
// Expects: ROWS, N (row length, at least 1), TEAM (a power of two), ADJACENT (neighbouring invocations take neighbouring rows,
// not elements), the position in x of a row (row_start) and of an element within it (row_step), LARGEST, and LAST (of equals, take
// the last).
// Source: ONNX ArgMax, ArgMin.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> values: array<x_t, WORKGROUP_SIZE>;
var<workgroup> places: array<u32, WORKGROUP_SIZE>;

fn better(v: x_t, k: u32, best: x_t, at: u32) -> bool {
    if (v == best) { return (k > at) == LAST; }
    return (v > best) == LARGEST;
}

fn group_main(group: u32, lane: u32) {
    let slot = select(lane / TEAM, lane % PER_GROUP, ADJACENT);
    let member = select(lane % TEAM, lane / PER_GROUP, ADJACENT);
    let row = group * PER_GROUP + slot;
    let start = row_start(min(row, ROWS - 1u));
    var place = member % N;
    var best = x_at(start + row_step(place));
    for (var k = place + TEAM; k < N; k += TEAM) {
        let v = x_at(start + row_step(k));
        if (better(v, k, best, place)) {
            best = v;
            place = k;
        }
    }
    let mine = slot * TEAM + member;
    values[mine] = best;
    places[mine] = place;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s && better(values[mine + s], places[mine + s], values[mine], places[mine])) {
            values[mine] = values[mine + s];
            places[mine] = places[mine + s];
        }
    }
    if (member == 0u && row < ROWS) { y_set(row, y_t(places[mine])); }
}
