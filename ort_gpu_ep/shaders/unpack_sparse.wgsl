// A row of y = the weight that sparse entries stand for (formats.py). A workgroup writes the zeros of a row, then its values: each
// invocation a share of the row's entries, whose places follow from the distances of the shares before it.
// Expects: entries (uint8), starts ([rows + 1]: first entry of a row), table (16 values), y; K
// (elements of a row), ENTRIES, OUT_ROW OUT_K (strides in y).
var<workgroup> lengths: array<u32, WORKGROUP_SIZE>;

fn group_main(row: u32, lane: u32) {
#include entries_of_row.wgsl
    for (var k = lane; k < K; k += WORKGROUP_SIZE) { y_set(row * OUT_ROW + k * OUT_K, 0.0); }
    var length = 0u;
    for (var e = begin; e < end; e++) { length += (entries_at(e) & 15u) + 1u; }
    lengths[lane] = length;
    storageBarrier();
    for (var reach = 1u; reach < WORKGROUP_SIZE; reach *= 2u) {
        workgroupBarrier();
        var before = 0u;
        if (lane >= reach) { before = lengths[lane - reach]; }
        workgroupBarrier();
        lengths[lane] += before;
    }
    var at = lengths[lane] - length - 1u;    // before the first entry: -1 modulo 2^32
    for (var e = begin; e < end; e++) {
        let entry = entries_at(e);
        at += (entry & 15u) + 1u;
        if (at < K && entry >= 16u) { y_set(row * OUT_ROW + at * OUT_K, table_at(entry >> 4u)); }
    }
}
