#default parts = 1
// The sums of the i-th row of fragments, from registers to the workgroup's memory, where each lane finds whole vectors.
    workgroupBarrier();
#for j in own_m // FM
    subgroupMatrixStore<row_major>(&tile, own_stage + $(j * FM * parts // 4)u, s$(i)_$j, $(stage_row * parts)u);
#end
    workgroupBarrier();
