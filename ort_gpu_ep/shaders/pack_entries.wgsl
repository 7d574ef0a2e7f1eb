// The columns and values of each row of a sparse weight's entries (formats.py), as pack_pruned.wgsl has them. A workgroup packs a row: each
// invocation a share of its entries, whose places follow from the distances of the shares before, and from how many of those have a value.
// Expects: entries (uint8), starts ([N + 1]: first entry of a row), table (16 values), columns ([N, WIDTH / 2] words), values ([N, WIDTH]);
// K, ENTRIES, WIDTH (at least what any row has).
const NONE: u32 = 0x10000u;
var<workgroup> lengths: array<vec2<u32>, WORKGROUP_SIZE>;       // distances, values

fn group_main(row: u32, lane: u32) {
#include entries_of_row.wgsl
    var length = vec2<u32>();
    for (var e = begin; e < end; e++) {
        let entry = entries_at(e);
        length += vec2<u32>((entry & 15u) + 1u, select(0u, 1u, entry >= 16u));
    }
    lengths[lane] = length;
    for (var reach = 1u; reach < WORKGROUP_SIZE; reach *= 2u) {
        workgroupBarrier();
        var before = vec2<u32>();
        if (lane >= reach) { before = lengths[lane - reach]; }
        workgroupBarrier();
        lengths[lane] += before;
    }
    workgroupBarrier();
    let total = min(lengths[WORKGROUP_SIZE - 1u].y, WIDTH);
    var k = lengths[lane].x - length.x - 1u;        // before the first entry: -1 modulo 2^32
    var at = lengths[lane].y - length.y;
    var waiting = NONE;     // the column in the low half of a word that waits for its high half, which may be another share's
    for (var e = begin; e < first + count && (e < end || waiting != NONE); e++) {
        let entry = entries_at(e);
        k += (entry & 15u) + 1u;
        if (entry >= 16u && at < WIDTH) {
            let column = select(0xffffu, k, k < K);     // past the end of a broken row: nowhere
            if (e < end) { values_set(row * WIDTH + at, table_at(entry >> 4u)); }
            if (at % 2u == 1u) {
                if (waiting != NONE) { columns_set((row * WIDTH + at) / 2u, waiting | (column << 16u)); }
                waiting = NONE;
            } else if (e < end) {
                waiting = column;
            }
            at++;
        }
    }
    if (waiting != NONE) { columns_set((row * WIDTH + at) / 2u, 0xffff0000u | waiting); }
    for (var i = total + lane; i < WIDTH; i += WORKGROUP_SIZE) {
        values_set(row * WIDTH + i, 0.0);
        if (i % 2u == 0u) { columns_set((row * WIDTH + i) / 2u, 0xffffffffu); }
    }
}
