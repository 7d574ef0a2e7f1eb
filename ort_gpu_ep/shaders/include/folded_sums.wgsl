// The sums of all lanes of a subgroup, of SUMS rows with each of COLS vectors, in workgroup memory: `sums`, from `its_sums` on; row by row.
// Expects: sum0_0 (row, vector) and so on, its_sums; SUMS COLS, OUTPUTS = SUMS * COLS, sums.
#let fours = (SUMS * COLS + 3) // 4
    // Of four sums each of four neighbours keeps one and passes on the others; then fours add up.
    let odd = (subgroup_lane & 1u) != 0u;
    let late = (subgroup_lane & 2u) != 0u;
#for j in fours
#for i in 2
#let first = 4 * j + 2 * i
#if first + 1 < SUMS * COLS
    let two$(j)_$i = select(sum$(first // COLS)_$(first % COLS), sum$((first + 1) // COLS)_$((first + 1) % COLS), odd)
        + subgroupShuffleXor(select(sum$((first + 1) // COLS)_$((first + 1) % COLS), sum$(first // COLS)_$(first % COLS), odd), 1u);
#else
#if first < SUMS * COLS
    let two$(j)_$i = sum$(first // COLS)_$(first % COLS) + subgroupShuffleXor(sum$(first // COLS)_$(first % COLS), 1u);
#else
    let two$(j)_$i = 0.0;
#end
#end
#end
    var four$j = select(two$(j)_0, two$(j)_1, late) + subgroupShuffleXor(select(two$(j)_1, two$(j)_0, late), 2u);
#end
    for (var far = 4u; far < subgroup_size; far *= 2u) {
#for j in fours
        four$j += subgroupShuffleXor(four$j, far);
#end
    }
    if (subgroup_lane < 4u) {
#for j in fours
        if ($(4 * j)u + subgroup_lane < OUTPUTS) { sums[its_sums + $(4 * j)u + subgroup_lane] = four$j; }
#end
    }
