// y[n, m] = the byte of the sum over k of x[n, k] * w[k, m] + correction[m]: product.wgsl for bytes. Or, where not REQUANTIZED, the sum itself
// less x's zero point times that of the weights. Rows n of x are pixels whose channels lie
// together (a convolution), or rows of a matrix; w holds words of four bytes along k, which lie along m. A quad is four words, 16 bytes along
// k; else tiles, teams, steps, parts and what is under way meanwhile are as product.wgsl has them.
// The zero point of x is in the corrections, and padding holds it. K is filled up with weights of zero, whatever x has there.
// Of a convolution k is (tap, channel), and what is not POINTWISE has a window. TAPS: a step lies within one tap. STRIDED: one tap, steps
// over pixels. WIDE: quads of a pixel are vectors. PLANES: x is stored [image, channel, y, x] with CHANNELS <= 4 of them: a tap is a word.
// Expects: x (vectors where WIDE), w [K in words, or more rows, M] words as vectors, numbers as vectors (of quantized_outputs.wgsl, or of
// column_sums.wgsl, beside a_zp? and X_SHIFT, 128 for an unsigned x; then it is POINTWISE), y [ROWS, M];
// with LAST parts (vectors) and arrived (atomics, zero); ROWS M4 C4 CW (quads, words of a tap) KQ (k in quads) LAST_WORD (of x) X_TURN (turns
// unsigned bytes into signed ones) STEPS PER SPLIT LOW HIGH; TM TN TQ MM NN SLICES and what follows from them, as product.wgsl; HEIGHT.. as
// Window.consts writes them.
#if REQUANTIZED
#include requantized.wgsl
#end
var<workgroup> tile: array<vec4<u32>, SHARED>;
#if LAST
var<workgroup> place: u32;
#end

#include byte_loads.wgsl

fn grid_main(group: vec3<u32>, lane: u32) {
    let m_first = group.x * $(TM // 4)u;
    let n_first = group.y * TN;
    let part = group.z;
    let first = part * PER;
    let end = min(first + PER, STEPS);
#include tile_lanes.wgsl
#if REQUANTIZED
    let last = numbers_word4(2u * M4);
#end
#for i in A_LOADS
    let a_to$i = lane + $(i * WORKGROUP_SIZE)u;
    var a_from$i = (first * $(TQ * 4)u + a_to$i / $(TM // 4)u) * M4 + min(m_first + a_to$i % $(TM // 4)u, M4 - 1u);
#end
    let kq = lane % TQ;
#for i in B_LOADS
    let row$i = (lane + $(i * WORKGROUP_SIZE)u) / TQ;
    let b_to$i = A_SIZE + kq * B_ROW + row$i;
    let n$i = min(n_first + row$i, ROWS - 1u);
#if POINTWISE and not STRIDED
    let b_from$i = n$i;
#else
    let image$i = n$i / (OUT_HEIGHT * OUT_WIDTH);
    let pixel$i = n$i - image$i * (OUT_HEIGHT * OUT_WIDTH);
    let oy$i = pixel$i / OUT_WIDTH;
    let ox$i = pixel$i - oy$i * OUT_WIDTH;
#if POINTWISE
    let b_from$i = (image$i * HEIGHT + oy$i * STRIDE_Y) * WIDTH + ox$i * STRIDE_X;
#else
    let top$i = i32(oy$i * STRIDE_Y) - i32(PAD_Y);
    let left$i = i32(ox$i * STRIDE_X) - i32(PAD_X);
    let base$i = (i32(image$i * $(CHANNELS if PLANES else 1)u * HEIGHT) + top$i) * i32(WIDTH) + left$i;
#end
#end
#end
#for z in 2
#for i in A_LOADS
    var a$(z)_$i = vec4<u32>();
#end
#for i in B_LOADS
    var b$(z)_$i = vec4<u32>();
#end
    if (first + $(z)u < end) {
#for i in A_LOADS
        a$(z)_$i = w_word4(a_from$i);
        a_from$i += $(TQ * 4)u * M4;
#end
#for i in B_LOADS
#if POINTWISE
        b$(z)_$i = quad(b_from$i, min((first + $(z)u) * TQ + kq, KQ - 1u));
#else
        b$(z)_$i = windowed(first + $(z)u, kq, top$i, left$i, base$i, last.y);
#end
#end
    }
#end
#for i in MM
#for j in NN
    var s$(i)_$j = 0i;
#end
#end
    for (var step = first; step < end; step += 2u) {
#for z in 2
#if z == 1
        if (step + 1u >= end) { break; }
#end
#for i in A_LOADS
        tile[$(z)u * BUFFER + a_to$i] = a$(z)_$i;
#end
#for i in B_LOADS
        tile[$(z)u * BUFFER + b_to$i] = b$(z)_$i;
#end
        workgroupBarrier();
        if (step + $(z + 2)u < end) {
#for i in A_LOADS
            a$(z)_$i = w_word4(a_from$i);
            a_from$i += $(TQ * 4)u * M4;
#end
#for i in B_LOADS
#if POINTWISE
            b$(z)_$i = quad(b_from$i, min((step + $(z + 2)u) * TQ + kq, KQ - 1u));
#else
            b$(z)_$i = windowed(step + $(z + 2)u, kq, top$i, left$i, base$i, last.y);
#end
#end
        }
        {
            let a_base = $(z)u * BUFFER + ty + team * $(TQ // SLICES * TM)u;
            let b_base = $(z)u * BUFFER + A_SIZE + tx + team * $(TQ // SLICES)u * B_ROW;
#for q in TQ // SLICES
#for j in NN
            let b$(q)_$j = tile[b_base + $(q)u * B_ROW + $(j * TX)u];
#end
#for k in 4
#for i in MM // 4
            let a$(q)_$(k)_$i = tile[a_base + $((q * 4 + k) * (TM // 4) + i * TY)u];
#end
#for i in MM
#for l in NN
#let j = l if i % 2 == 0 else NN - 1 - l
            s$(i)_$j += dot4I8Packed(a$(q)_$(k)_$(i // 4)[$(i % 4)], b$(q)_$j[$k]);
#end
#end
#end
#end
        }
#end
    }
#if SLICES == 1
#for e in OUTPUTS
#let i = e // NN * 4
#let j = e % NN
    var r$e = vec4<i32>(s$(i)_$j, s$(i + 1)_$j, s$(i + 2)_$j, s$(i + 3)_$j);
    let m$e = m_first + ty + $(e // NN * TY)u;
    let o$e = n_first + tx + $(e % NN * TX)u;
#end
#else
    // every team's sums to workgroup memory, in ROUNDS; then each lane adds up its share of them
#for round in ROUNDS
    workgroupBarrier();
#for e in EACH
#let i = (round * EACH + e) // NN * 4
#let j = (round * EACH + e) % NN
    tile[team * $(EACH * TEAM)u + $(e * TEAM)u + t] = bitcast<vec4<u32>>(vec4<i32>(s$(i)_$j, s$(i + 1)_$j, s$(i + 2)_$j, s$(i + 3)_$j));
#end
    workgroupBarrier();
#for f in EACH // SLICES
#let g = round * (EACH // SLICES) + f
    let e$g = team + $(f * SLICES)u;
    var r$g = bitcast<vec4<i32>>(tile[e$g * TEAM + t]);
#for s in SLICES - 1
    r$g += bitcast<vec4<i32>>(tile[$((s + 1) * EACH * TEAM)u + e$g * TEAM + t]);
#end
    let m$g = m_first + ty + (e$g + $(round * EACH)u) / NN * TY;
    let o$g = n_first + tx + (e$g + $(round * EACH)u) % NN * TX;
#end
#end
#end
#if LAST
    let counter = group.y * $((M4 * 4 + TM - 1) // TM)u + group.x;
    let own = counter * $(SPLIT * OUTPUTS * WORKGROUP_SIZE)u + lane;
#for e in OUTPUTS
    parts[own + (part * OUTPUTS + $(e)u) * WORKGROUP_SIZE] = bitcast<vec4<u32>>(r$e);
#end
#include last_arriving.wgsl
#for e in OUTPUTS
    r$e = vec4<i32>();
#end
    for (var s = 0u; s < SPLIT; s++) {
#for e in OUTPUTS
        r$e += bitcast<vec4<i32>>(parts[own + (s * OUTPUTS + $(e)u) * WORKGROUP_SIZE]);
#end
    }
#end
#if not REQUANTIZED
    let zero = i32(a_zp_at(0u)) - i32(X_SHIFT);
#for e in OUTPUTS
    if (m$e < M4 && o$e < ROWS) {
        let at$e = (o$e * M4 + m$e) * 4u;
        let v$e = r$e - zero * bitcast<vec4<i32>>(numbers_word4(m$e));
#for c in 4
        y_set(at$e + $(c)u, v$e[$c]);
#end
    }
#end
#else
    let zero = bitcast<f32>(last.x);
#for e in OUTPUTS
    if (m$e < M4 && o$e < ROWS) {
        let sum = r$e + bitcast<vec4<i32>>(numbers_word4(m$e));
        let scale = bitcast<vec4<f32>>(numbers_word4(M4 + m$e));
        y_set_word(o$e * M4 + m$e, requantized(sum, scale, zero));
    }
#end
#end
}
