// y[row] = position of the row's maximum (or minimum). TEAM invocations of a workgroup share a row; it has WORKGROUP_SIZE / TEAM rows.
// Long rows are cut: a first kernel has PIECES rows of N elements for each row of LENGTH, a second one (GIVEN) the N positions that it found.
// Expects: found? (the positions, for each row of x), ROWS, N (row length, at least 1), PIECES (1 for whole rows), LENGTH, GIVEN, TEAM (a power of two), ADJACENT (neighbouring invocations take neighbouring rows,
// not elements), the position in x of a row (row_start) and of an element within it (row_step), LARGEST, and LAST (of equals, take
// the last).
// Source: ONNX ArgMax, ArgMin.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> values: array<x_t, WORKGROUP_SIZE>;
var<workgroup> places: array<u32, WORKGROUP_SIZE>;

#if PAIRS and X_BITS == 64
fn better(v: x_t, k: u32, best: x_t, at: u32) -> bool {
    if (all(v == best)) { return (k > at) == LAST; }
    return less_signed_64(best, v) == LARGEST;
}
#else
fn better(v: x_t, k: u32, best: x_t, at: u32) -> bool {
    if (v == best) { return (k > at) == LAST; }
    return (v > best) == LARGEST;
}
#end

// Where in its row of x element k of a row is.
fn place_of(row: u32, k: u32) -> u32 {
#if GIVEN
    return min(found_at(row * N + k), LENGTH - 1u);
#else
    return min(row % PIECES * N + k, LENGTH - 1u);
#end
}

fn group_main(group: u32, lane: u32) {
    let slot = select(lane / TEAM, lane % PER_GROUP, ADJACENT);
    let member = select(lane % TEAM, lane / PER_GROUP, ADJACENT);
    let row = group * PER_GROUP + slot;
    let safe = min(row, ROWS - 1u);
    let start = row_start(safe / PIECES);
    var place = place_of(safe, member % N);
    var best = x_at(start + row_step(place));
    for (var k = member % N + TEAM; k < N; k += TEAM) {
        let at = place_of(safe, k);
        let v = x_at(start + row_step(at));
        if (better(v, at, best, place)) {
            best = v;
            place = at;
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
    if (member == 0u && row < ROWS) { y_set(row, y_of(places[mine], 0u)); }
}
