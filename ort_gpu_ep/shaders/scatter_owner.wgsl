// owners[p] = 1 + the last update whose place is p, or 0; a workgroup per TILE places, which reads all updates.
// So updates of one place never race: the last in order wins, as in ONNX's reference.
// Expects: places (row of each update), owners, ROWS (number of places), UPDATES, TILE.
var<workgroup> last: array<atomic<u32>, TILE>;

fn group_main(group: u32, lane: u32) {
    let start = group * TILE;
    for (var t = lane; t < TILE; t += WORKGROUP_SIZE) { atomicStore(&last[t], 0u); }
    workgroupBarrier();
    for (var n = lane; n < UPDATES; n += WORKGROUP_SIZE) {
        let t = places_at(n) - start;                  // places before the tile wrap around to large ones
        if (t < TILE) { atomicMax(&last[t], n + 1u); }
    }
    workgroupBarrier();
    for (var t = lane; t < TILE; t += WORKGROUP_SIZE) {
        if (start + t < ROWS) { owners_set(start + t, atomicLoad(&last[t])); }
    }
}
