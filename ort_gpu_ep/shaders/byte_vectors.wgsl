// Products of few vectors, as bytes of round_vectors.wgsl, with several matrices of 4-bit codes: y[c, n] = sum over units of 32 of x_scale[c, unit] *
// scale[n, block] * (sum of x[c, k] * code[n, k] - zero * sum of x[c, k]) + bias, of each matrix. With WIDE 2 a workgroup has the rows of both
// matrices, and the fused steps find the second one's product as `beside`; with WIDE 1 each matrix has workgroups and an output of its own.
// An invocation has one unit of COLS vectors in registers, and goes through ITERS times ROWS rows, of which it takes 16 bytes, as the model
// stores them, while the next ones are under way. A workgroup has the units of a row.
// Expects: x (codes of round_vectors.wgsl, as vectors), numbers, w (vectors of words: [N, K / 8]), table (scales [N, BLOCKS]), zp? and those of other
// matrices, w1 table1 zp1 c1 y1 and so on; c, y; K COLS MATRICES WIDE N_0 N_1 N_2 as packed_matvecs.wgsl; BLOCK (a multiple of 32) BLOCKS, POINTS
// ZP_ROW ZERO, ROWS ITERS, PARTS (subgroups at most), COLUMN_GROUPS COUNT (workgroups that have COLS vectors each of the same rows). Needs subgroups.
// Source: MatMulNBits of ONNX Runtime (com.microsoft), accuracy_level 4.
const UNITS: u32 = K / 32u;
#let SUMS = ROWS * WIDE
const OUTPUTS: u32 = $(SUMS * COLS)u;
var<workgroup> sums: array<f32, PARTS * ITERS * OUTPUTS>;
#if WIDE == 2
var<private> beside: f32;
#end

#include stored_codes.wgsl
#include whole_numbers.wgsl

fn group_main(group: u32, lane: u32) {
    let first_column = group % COLUMN_GROUPS * COLS;
    let whole = group / COLUMN_GROUPS;      // neighbours have the same rows
    let unit = min(lane, UNITS - 1u);
    let block = unit / $(BLOCK // 32)u;
#for MATRIX in MATRICES // WIDE
#let n = (MATRIX == 0) * N_0 + (MATRIX == 1) * N_1 + (MATRIX == 2) * N_2
#let each = ROWS * ITERS
#let start = (MATRIX > 0) * ((N_0 + each - 1) // each) + (MATRIX > 1) * ((N_1 + each - 1) // each)
    if (whole >= $(start)u && whole < $(start + (n + each - 1) // each)u) {
    let first_row = (whole - $(start)u) * $(each)u;
#for r in ROWS
    let from$r = min(first_row + $(r)u, $(n - 1)u);
#for m in WIDE
    var next$(m * ROWS + r) = codes_of_$(MATRIX + m)(from$r * UNITS + unit);
    var next_scale$(m * ROWS + r) = scale_of_$(MATRIX + m)(from$r, block);
#if POINTS
    var next_zero$(m * ROWS + r) = zero_of_$(MATRIX + m)(from$r, block);
#end
#end
#end
#for c in COLS
    let column$c = 2u * min(first_column + $(c)u, COUNT - 1u);
    let even$c = x_word4(column$c * UNITS + unit);
    let odd$c = x_word4((column$c + 1u) * UNITS + unit);
    let x_scale$c = numbers_at(column$c * UNITS + unit);
    let x_sum$c = numbers_at((column$c + 1u) * UNITS + unit);
#if not POINTS
    let taken$c = -ZERO * x_sum$c;
#end
#end
    for (var i = 0u; i < ITERS; i++) {
#for r in SUMS
        let low$r = next$r & vec4<u32>(0x0f0f0f0fu);
        let high$r = (next$r >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
#if WORKGROUP_SIZE == K // 32
        let scale$r = next_scale$r;
#else
        let scale$r = select(0.0, next_scale$r, lane < UNITS);
#end
#if POINTS
        let zero$r = next_zero$r;
#end
#end
#for r in ROWS
        let row$r = min(first_row + (i + 1u) * ROWS + $(r)u, $(n - 1)u);
#for m in WIDE
        next$(m * ROWS + r) = codes_of_$(MATRIX + m)(row$r * UNITS + unit);
        next_scale$(m * ROWS + r) = scale_of_$(MATRIX + m)(row$r, block);
#if POINTS
        next_zero$(m * ROWS + r) = zero_of_$(MATRIX + m)(row$r, block);
#end
#end
#end
#for r in SUMS
#for c in COLS
        let dot$(r)_$c = dot4I8Packed(low$r.x, even$c.x) + dot4I8Packed(low$r.y, even$c.y) + dot4I8Packed(low$r.z, even$c.z)
            + dot4I8Packed(low$r.w, even$c.w) + dot4I8Packed(high$r.x, odd$c.x) + dot4I8Packed(high$r.y, odd$c.y)
            + dot4I8Packed(high$r.z, odd$c.z) + dot4I8Packed(high$r.w, odd$c.w);
#if POINTS
        let sum$(r)_$c = scale$r * fma(x_scale$c, float_of(dot$(r)_$c), -zero$r * x_sum$c);
#else
        let sum$(r)_$c = scale$r * fma(x_scale$c, float_of(dot$(r)_$c), taken$c);
#end
#end
#end
        let its_sums = (subgroup_id * ITERS + i) * OUTPUTS;
#include folded_sums.wgsl
    }
    workgroupBarrier();
    for (var i = lane; i < $(each * COLS)u; i += WORKGROUP_SIZE) {
        let row = first_row + i % $(each)u;
        let column = i / $(each)u;
        if (row < $(n)u && first_column + column < COUNT) {
            let from_sum = i % $(each)u / ROWS * OUTPUTS + i % ROWS * COLS + column;
            var v = 0.0;
#if WIDE == 2
            beside = 0.0;
#end
            for (var part = 0u; part < subgroups; part++) {
                v += sums[part * $(ITERS)u * OUTPUTS + from_sum];
#if WIDE == 2
                beside += sums[part * $(ITERS)u * OUTPUTS + from_sum + $(ROWS * COLS)u];
#end
            }
#if MATRIX
            y$(MATRIX)_set((first_column + column) * $(n)u + row, v + c$(MATRIX)_at(row));
#else
#if WIDE == 2
            beside += c1_at(row);
#end
            y_set((first_column + column) * $(n)u + row, v + c_at(row));
#end
        }
    }
    }
#end
}
