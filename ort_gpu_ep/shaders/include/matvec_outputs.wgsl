// What a workgroup's sums give: PER rows of matrix MATRIX (with WIDE 2 of the next one, too) times COLS vectors, and a norm's factor.
// Expects: group, lane, parts and `sums` (packed_sums.wgsl), n (rows), and what packed_matvecs.wgsl says.
    for (var i = lane; i < PER * COLS; i += WORKGROUP_SIZE) {
        let row = group * PER + i / COLS;
        if (row < $(n)u) {
            var v = 0.0;
            var factor = 0.0;
#if WIDE == 2
            beside = 0.0;
#end
            for (var part = 0u; part < parts; part++) {
                v += sums[part * OUTPUTS + i];
#if WIDE == 2
                beside += sums[part * OUTPUTS + PER * COLS + i];
#end
#if NORM
                factor += sums[part * OUTPUTS + $(PER * WIDE * COLS)u + i % COLS];
#end
            }
#if NORM
            factor = 1.0 / sqrt(factor / f32(K) + EPSILON);
#else
            factor = 1.0;
#end
#if MATRIX
            y$(MATRIX)_set(i % COLS * $(n)u + row, fma(v, factor, c$(MATRIX)_at(row)));
#else
#if WIDE == 2
            beside = fma(beside, factor, c1_at(row));
#end
            y_set(i % COLS * $(n)u + row, fma(v, factor, c_at(row)));
#end
        }
    }
