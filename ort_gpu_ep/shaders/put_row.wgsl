// Writes one update of SIZE elements into y, which holds the data; all else stays as it is there. An index that is out of range writes nothing.
// One invocation per element of the update.
// Expects: indices (one tuple, 64 bits), updates, y, TUPLE, SIZEk and STEPk. Source: ONNX ScatterND.
const SIZES = array<u32, 8>(SIZE0, SIZE1, SIZE2, SIZE3, SIZE4, SIZE5, SIZE6, SIZE7);
const STEPS = array<u32, 8>(STEP0, STEP1, STEP2, STEP3, STEP4, STEP5, STEP6, STEP7);

fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= SIZE) { return; }
    var row = 0u;
    for (var k = 0u; k < TUPLE; k++) {
        let size = i32(SIZES[k]);
        let words = indices_pair(k);
        let index = bitcast<i32>(words.x);
        if (index < -size || index >= size || bitcast<i32>(words.y) != index >> 31u) {
            out_of_range();
            return;
        }
        row += u32(select(index, index + size, index < 0)) * STEPS[k];
    }
    y_set(row * SIZE + i, updates_at(i));
}
