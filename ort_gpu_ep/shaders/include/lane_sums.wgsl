// The sums of all lanes of a workgroup, of SUMS rows with each of COLS vectors, in workgroup memory: `sums`, OUTPUTS for each of `parts`; row by row.
// Expects: sum0_0 (row, vector) and so on, lane; WORKGROUP_SIZE SUBGROUPS, OUTPUTS = SUMS * COLS, sums (with a part for each subgroup, or for each lane).
#if SUBGROUPS
    let its_sums = subgroup_id * OUTPUTS;
#include folded_sums.wgsl
#else
#for r in SUMS
#for c in COLS
    sums[lane * OUTPUTS + $(r * COLS + c)u] = sum$(r)_$c;
#end
#end
#end
#if SUBGROUPS
    let parts = subgroups;
#else
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        for (var i = lane; i < half * OUTPUTS; i += WORKGROUP_SIZE) { sums[i] += sums[i + half * OUTPUTS]; }
    }
    let parts = 1u;
#end
    workgroupBarrier();
