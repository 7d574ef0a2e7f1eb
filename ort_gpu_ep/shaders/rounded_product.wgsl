// y[m, n] = sum over blocks of x_scale[m, block] * scale[n, block] * (sum of x[m, k] * code[n, k] - zero * sum of x[m, k]) + bias[n], x in
// bytes (quantize_blocks.wgsl), so that four products are one dot4I8Packed. A workgroup has TM rows of x and 64 of the weights, and goes
// along K in steps of 32; an invocation owns 8 x 8 sums, fours of rows m and n that lie TX and TY vectors apart.
// Expects: x (codes of quantize_blocks.wgsl, as vectors), numbers (its numbers, as vectors), w (words, rows of WORDS), table, zp?, c?, y;
// TOGETHER: w (as vectors), scales and zeros in the order of packed_matvec.wgsl, x in fours along k;
// M N M4 (vectors of rows of x) STEPS WORDS BITS (4 or 8) STEPS_OF (of a block) TM, c_index, and of the weights what packed_matvec.wgsl has.
const TX: u32 = TM / 8u;
const TY: u32 = 8u;
#let quads = TM // 4
#let pieces = WORKGROUP_SIZE // 64 if WORKGROUP_SIZE > 64 else 1
#let rows = 64 // WORKGROUP_SIZE if WORKGROUP_SIZE < 64 else 1
var<workgroup> x_tile: array<vec4<u32>, $(16 * quads)>;
var<workgroup> w_tile: array<vec4<u32>, 256>;
var<workgroup> x_numbers: array<vec4<u32>, $(4 * quads)>;
var<workgroup> row_scales: array<vec4<f32>, 32>;
#if HAS_ZP or HAS_ZEROS
var<workgroup> row_zeros: array<vec4<f32>, 32>;
#end

#include zero_point.wgsl
#include whole_numbers.wgsl

fn floats_of(dots: vec4<i32>) -> vec4<f32> {
#if STEPS_OF <= 16 and TAKEN < 32 and TAKEN > -32
    return vec4<f32>(float_of(dots.x), float_of(dots.y), float_of(dots.z), float_of(dots.w));     // of 32 products of bytes, less 32 times 512 bytes
#else
    return vec4<f32>(dots);
#end
}

#if TOGETHER
// Bytes that hold codes of four rows at one k each, put together so that a word has four codes of one row: rows 0 to 3 of them.
fn turned(a: u32, b: u32, c: u32, d: u32) -> vec4<u32> {
    let even = vec2<u32>(a & 0x00ff00ffu, c & 0x00ff00ffu) | (vec2<u32>(b & 0x00ff00ffu, d & 0x00ff00ffu) << vec2<u32>(8u));
    let odd = (vec2<u32>(a >> 8u, c >> 8u) & vec2<u32>(0x00ff00ffu)) | vec2<u32>(b & 0xff00ff00u, d & 0xff00ff00u);
    return vec4<u32>(
        (even.x & 0xffffu) | (even.y << 16u), (odd.x & 0xffffu) | (odd.y << 16u), (even.x >> 16u) | (even.y & 0xffff0000u),
        (odd.x >> 16u) | (odd.y & 0xffff0000u));
}

// Four words of the step: eight rows at four k. t: which of the 64 there are.
fn four_words(n0: u32, step: u32, t: u32) -> vec4<u32> {
    let octet = min(n0 / 8u + t / 8u, $((N + 7) // 8 - 1)u);
    return w_word4(octet * $(WORDS // 4)u + min(step * 8u + t % 8u, $(WORDS // 4 - 1)u));
}

fn scale_of(row: u32, block: u32) -> f32 { return f32(scales_at((row / 8u * BLOCKS + block) * 8u + row % 8u)); }
#if HAS_ZEROS
fn zero_there(row: u32, block: u32) -> f32 { return f32(extractBits(zeros_word(row / 8u * BLOCKS + block), row % 8u * 4u, 4u)); }
#end
#else
fn scale_of(row: u32, block: u32) -> f32 { return table_at(row * TABLE_ROW + block * TABLE_BLOCK); }
#if HAS_ZP
fn zero_there(row: u32, block: u32) -> f32 { return zero_of(row, block); }
#end
#end

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
#if TOGETHER
    var four$r = four_words(n0, 0u, row$r);
#else
    let w_from$r = at$r * WORDS + piece * $(BITS // pieces)u;
#for i in BITS // pieces
    var w$(r)_$i = w_word(w_from$r + $(i)u);
#end
#end
    var scale$r = scale_of(at$r, 0u);
#if HAS_ZP or HAS_ZEROS
    var zero$r = zero_there(at$r, 0u);
#end
#end
    for (var step = 0u; step < STEPS; step++) {
        let side = step & 1u;
#for i in 2
        x_tile[side * $(8 * quads)u + lane + $(i * WORKGROUP_SIZE)u] = x$i;
#end
        if (lane < $(2 * quads)u) { x_numbers[side * $(2 * quads)u + lane] = number; }
#for r in rows
#if TOGETHER
        let to$r = side * 128u + row$r % 8u * 16u + row$r / 8u * 2u;
#if pieces == 2
        {       // every second row
            let half = (four$r >> vec4<u32>(4u * piece)) & vec4<u32>(0x0f0f0f0fu);
            let found = turned(half.x, half.y, half.z, half.w);
            w_tile[to$r][piece] = found.x;
            w_tile[to$r][piece + 2u] = found.y;
            w_tile[to$r + 1u][piece] = found.z;
            w_tile[to$r + 1u][piece + 2u] = found.w;
        }
#else
        {
            let low = four$r & vec4<u32>(0x0f0f0f0fu);
            let high = (four$r >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
            let even = turned(low.x, low.y, low.z, low.w);
            let odd = turned(high.x, high.y, high.z, high.w);
            w_tile[to$r] = vec4<u32>(even.x, odd.x, even.y, odd.y);
            w_tile[to$r + 1u] = vec4<u32>(even.z, odd.z, even.w, odd.w);
        }
#end
#else
#for i in BITS // pieces
#if BITS == 4
        let to$(r)_$i = side * 128u + (piece * $(BITS // pieces)u + $(i)u) * 32u + row$r / 4u;
        w_tile[to$(r)_$i][row$r % 4u] = w$(r)_$i & 0x0f0f0f0fu;
        w_tile[to$(r)_$i + 16u][row$r % 4u] = (w$(r)_$i >> 4u) & 0x0f0f0f0fu;
#else
        w_tile[side * 128u + (piece * $(BITS // pieces)u + $(i)u) * 16u + row$r / 4u][row$r % 4u] = w$(r)_$i ^ 0x80808080u;
#end
#end
#end
        if (piece == 0u) {
            row_scales[side * 16u + row$r / 4u][row$r % 4u] = scale$r;
#if HAS_ZP or HAS_ZEROS
            row_zeros[side * 16u + row$r / 4u][row$r % 4u] = zero$r;
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
#if TOGETHER
            four$r = four_words(n0, next, row$r);
#else
#for i in BITS // pieces
            w$(r)_$i = w_word(w_from$r + next * $(BITS)u + $(i)u);
#end
#end
            scale$r = scale_of(at$r, block);
#if HAS_ZP or HAS_ZEROS
            zero$r = zero_there(at$r, block);
#end
#end
        }
        let once = select(0, 1, step % STEPS_OF == 0u);     // the sum is that of the whole block
#for j in 2
        let x_scale$j = bitcast<vec4<f32>>(x_numbers[side * $(2 * quads)u + tx + $(j)u * TX]);
        let x_sum$j = once * bitcast<vec4<i32>>(x_numbers[side * $(2 * quads)u + $(quads)u + tx + $(j)u * TX]);
#for i in 8
#if HAS_ZP or HAS_ZEROS
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
        let scale_of$r = row_scales[side * 16u + ty + $(r)u * TY];
#if HAS_ZP or HAS_ZEROS
        let zero_of$r = row_zeros[side * 16u + ty + $(r)u * TY];
#end
#end
#for i in 8
#for j in 2
#if HAS_ZP or HAS_ZEROS
        let whole$(i)_$j = floats_of(dot$(i)_$j) - zero_of$(i // 4)[$(i % 4)] * vec4<f32>(x_sum$j);
#else
        let whole$(i)_$j = floats_of(dot$(i)_$j);
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
