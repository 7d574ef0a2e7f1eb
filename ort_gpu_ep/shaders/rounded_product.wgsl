// y[m, n] = sum over blocks of x_scale[m, block] * scale[n, block] * (sum of x[m, k] * code[n, k] - zero * sum of x[m, k]) + bias[n], x in
// bytes (quantize_blocks.wgsl), so that four products are one dot4I8Packed. A workgroup has TM rows of x and 64 of the weights, and goes
// along K in steps of 32; an invocation owns 8 x 8 sums, fours of rows m and n that lie TX and TY vectors apart.
// Expects: x (codes of quantize_blocks.wgsl, as vectors), numbers (its numbers, as vectors), w (words, rows of WORDS), table, zp?, c?, y;
// M N M4 (vectors of rows of x) STEPS WORDS BITS (4 or 8) STEPS_OF (of a block) TM, c_index, and of the weights what packed_matvec.wgsl has.
const TX: u32 = TM / 8u;
const TY: u32 = 8u;
#let quads = TM // 4
#let pieces = WORKGROUP_SIZE // 64 if WORKGROUP_SIZE > 64 else 1
#let rows = 64 // WORKGROUP_SIZE if WORKGROUP_SIZE < 64 else 1
var<workgroup> x_tile: array<vec4<u32>, $(16 * quads)>;
var<workgroup> w_tile: array<vec4<u32>, 256>;
var<workgroup> x_numbers: array<vec4<u32>, $(4 * quads)>;
var<workgroup> scales: array<vec4<f32>, 32>;
#if HAS_ZP
var<workgroup> zeros: array<vec4<f32>, 32>;
#end

#include zero_point.wgsl

fn group_main(group: u32, lane: u32) {
    let n0 = group % TILES_N * 64u;
    let q0 = group / TILES_N * $(quads)u;
    let tx = lane % TX;
    let ty = lane / TX;
#for i in 8
#for j in 2
    var sum$(i)_$j = vec4<f32>();
#end
#end
#for i in 2
    let x_k$i = (lane + $(i * WORKGROUP_SIZE)u) / $(quads)u;
    let x_from$i = min(q0 + (lane + $(i * WORKGROUP_SIZE)u) % $(quads)u, M4 - 1u);
    var x$i = x_word4(x_k$i * M4 + x_from$i);
#end
    let number_from = lane / $(quads)u * M4 + min(q0 + lane % $(quads)u, M4 - 1u);
    var number = vec4<u32>();
    if (lane < $(2 * quads)u) { number = numbers_word4(number_from); }
    let piece = lane / 64u;
#for r in rows
    let row$r = lane % 64u + $(r * WORKGROUP_SIZE)u;
    let at$r = min(n0 + row$r, N - 1u);
    let w_from$r = at$r * WORDS + piece * $(BITS // pieces)u;
#for i in BITS // pieces
    var w$(r)_$i = w_word(w_from$r + $(i)u);
#end
    var scale$r = table_at(at$r * TABLE_ROW);
#if HAS_ZP
    var zero$r = zero_of(at$r, 0u);
#end
#end
    for (var step = 0u; step < STEPS; step++) {
        let side = step & 1u;
#for i in 2
        x_tile[side * $(8 * quads)u + lane + $(i * WORKGROUP_SIZE)u] = x$i;
#end
        if (lane < $(2 * quads)u) { x_numbers[side * $(2 * quads)u + lane] = number; }
#for r in rows
#for i in BITS // pieces
#if BITS == 4
        let to$(r)_$i = side * 128u + (piece * $(BITS // pieces)u + $(i)u) * 32u + row$r / 4u;
        w_tile[to$(r)_$i][row$r % 4u] = w$(r)_$i & 0x0f0f0f0fu;
        w_tile[to$(r)_$i + 16u][row$r % 4u] = (w$(r)_$i >> 4u) & 0x0f0f0f0fu;
#else
        w_tile[side * 128u + (piece * $(BITS // pieces)u + $(i)u) * 16u + row$r / 4u][row$r % 4u] = w$(r)_$i ^ 0x80808080u;
#end
#end
        if (piece == 0u) {
            scales[side * 16u + row$r / 4u][row$r % 4u] = scale$r;
#if HAS_ZP
            zeros[side * 16u + row$r / 4u][row$r % 4u] = zero$r;
#end
        }
#end
        workgroupBarrier();
        let next = step + 1u;
        if (next < STEPS) {
#for i in 2
            x$i = x_word4((next * 8u + x_k$i) * M4 + x_from$i);
#end
            let block = next / STEPS_OF;
            if (lane < $(2 * quads)u) { number = numbers_word4(2u * block * M4 + number_from); }
#for r in rows
#for i in BITS // pieces
            w$(r)_$i = w_word(w_from$r + next * $(BITS)u + $(i)u);
#end
            scale$r = table_at(at$r * TABLE_ROW + block * TABLE_BLOCK);
#if HAS_ZP
            zero$r = zero_of(at$r, block);
#end
#end
        }
        let once = select(0, 1, step % STEPS_OF == 0u);     // the sum is that of the whole block
#for j in 2
        let x_scale$j = bitcast<vec4<f32>>(x_numbers[side * $(2 * quads)u + tx + $(j)u * TX]);
        let x_sum$j = once * bitcast<vec4<i32>>(x_numbers[side * $(2 * quads)u + $(quads)u + tx + $(j)u * TX]);
#for i in 8
#if HAS_ZP
        var dot$(i)_$j = vec4<i32>();
#else
        var dot$(i)_$j = x_sum$j * -i32(TAKEN);
#end
#end
#end
#for k in 8
        {
#for j in 2
            let a$j = x_tile[side * $(8 * quads)u + $(k * quads)u + tx + $(j)u * TX];
            let b$j = w_tile[side * 128u + $(16 * k)u + ty + $(j)u * TY];
#end
#for i in 8
#for j in 2
            dot$(i)_$j += vec4<i32>(
                dot4I8Packed(a$(j).x, b$(i // 4)[$(i % 4)]), dot4I8Packed(a$(j).y, b$(i // 4)[$(i % 4)]),
                dot4I8Packed(a$(j).z, b$(i // 4)[$(i % 4)]), dot4I8Packed(a$(j).w, b$(i // 4)[$(i % 4)]));
#end
#end
        }
#end
#for r in 2
        let scale_of$r = scales[side * 16u + ty + $(r)u * TY];
#if HAS_ZP
        let zero_of$r = zeros[side * 16u + ty + $(r)u * TY];
#end
#end
#for i in 8
#for j in 2
#if HAS_ZP
        let whole$(i)_$j = vec4<f32>(dot$(i)_$j) - zero_of$(i // 4)[$(i % 4)] * vec4<f32>(x_sum$j);
#else
        let whole$(i)_$j = vec4<f32>(dot$(i)_$j);
#end
        sum$(i)_$j = fma(whole$(i)_$j, x_scale$j * scale_of$(i // 4)[$(i % 4)], sum$(i)_$j);
#end
#end
    }
#for j in 2
#for e in 4
    {
        let m = (q0 + tx + $(j)u * TX) * 4u + $(e)u;
        if (m < M) {
#for i in 8
            {
                let n = n0 + (ty + $(i // 4)u * TY) * 4u + $(i % 4)u;
                if (n < N) {
                    let i = m * N + n;
                    var v = sum$(i)_$j[$e];
                    if (HAS_C) { v += c_at(c_index(i)); }
                    y_set(i, v);
                }
            }
#end
        }
    }
#end
#end
}
