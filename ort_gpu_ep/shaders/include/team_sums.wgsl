// The end of a matrix times COLS vectors: the sums of a TEAM added up in halves, and stored.
// Expects: sum0, sum1, ... of this invocation, its member of the team and its row; sums (workgroup memory, WORKGROUP_SIZE * COLS), c?, y;
// N COLS TEAM Y_COL Y_ROW ALPHA BETA, c_index.
#for c in COLS
    sums[$(c)u * WORKGROUP_SIZE + lane] = sum$c;
#end
    for (var half = TEAM / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (member < half) {
#for c in COLS
            sums[$(c)u * WORKGROUP_SIZE + lane] += sums[$(c)u * WORKGROUP_SIZE + lane + half];
#end
        }
    }
    workgroupBarrier();
    if (member < COLS && row < N) {
        let i = member * Y_COL + row * Y_ROW;
        var v = ALPHA * sums[member * WORKGROUP_SIZE + lane - member];
        if (HAS_C) { v += BETA * c_at(c_index(i)); }
        y_set(i, v);
    }
