// y[batch, m, n] = sum over k of (a[m, k] - a_zp) * (b[k, n] - b_zp) + bias, in 32-bit integers: tiles of TM x TN; each step brings STEP
// elements of rows and columns into workgroup memory, four of them in a word. An invocation owns 4 x 4 neighbours.
// Unsigned elements are shifted by 128 with their zero points, so that dot4I8Packed takes them; the zero points count through the sums of
// rows and columns.
// Expects: a, b, a_zp? b_zp? (0 where left out) c?, y; a_base, b_base (offset of a batch); M N K (a batch's), TILES_M TILES_N TM TN STEP,
// BATCH, A_ROW A_K B_K B_COL (strides), A_WORDS (rows of a begin at words and go along k), B_WORDS (those of b go along n), A_ZP_ROW
// B_ZP_COL (strides of the zero points, 0: one for all), ZP_ROWS (zero points of a belong to the rows of all groups), GROUP_COUNT,
// A_SHIFT B_SHIFT (128 for unsigned ones), USE_A_ZP USE_B_ZP (whether these can differ from 0 after the shift), BY_COLUMN:
// the bias is of the columns, else of the rows of all groups; so are the numbers of quantized_outputs.wgsl, by which with REQUANTIZED y is
// bytes, four of a row in a word (N divides by 4).
// IM2COL: k is (channel, tap), n an output pixel; the window as window.py's consts writes it, and padding holds b_zp.
#if REQUANTIZED
#include requantized.wgsl
#end
const RQ: u32 = TM / 4u;
const CQ: u32 = TN / 4u;
const KQ: u32 = STEP / 4u;
var<workgroup> a_tile: array<vec4<u32>, RQ * KQ>;
var<workgroup> b_tile: array<vec4<u32>, CQ * KQ>;
var<private> a_start: u32;
var<private> b_start: u32;
var<private> padding: i32;

fn byte(v: i32) -> u32 { return u32(v) & 0xffu; }

// Outside, the first element is read and left out: a branch for each element makes some drivers compile for minutes, or for ever.
#if A_WORDS
fn a_word_at(m: u32, k: u32) -> u32 {
    let inside = (m < M) & (k < K);
    return select(0u, a_word(select(0u, (a_start + m * A_ROW + k * A_K) / 4u, inside)) ^ select(0u, 0x80808080u, A_SHIFT == 128u), inside);
}
#else
fn a_element(m: u32, k: u32) -> u32 {
    let inside = (m < M) & (k < K);
    return select(0u, byte(i32(a_at(select(0u, a_start + m * A_ROW + k * A_K, inside))) - i32(A_SHIFT)), inside);
}

fn a_word_at(m: u32, k: u32) -> u32 {
    return a_element(m, k) | (a_element(m, k + 1u) << 8u) | (a_element(m, k + 2u) << 16u) | (a_element(m, k + 3u) << 24u);
}
#end

fn b_element(k: u32, n: u32) -> u32 {
    let within = (k < K) & (n < N);
    if (!IM2COL) { return select(0u, byte(i32(b_at(select(0u, b_start + k * B_K + n * B_COL, within))) - i32(B_SHIFT)), within); }
    let tap = k % (WINDOW_Z * WINDOW_Y * WINDOW_X);
    let channel = k / (WINDOW_Z * WINDOW_Y * WINDOW_X);
    let z = i32(n / (OUT_HEIGHT * OUT_WIDTH) * STRIDE_Z + tap / (WINDOW_Y * WINDOW_X) * DILATION_Z) - i32(PAD_Z);
    let y = i32(n / OUT_WIDTH % OUT_HEIGHT * STRIDE_Y + tap / WINDOW_X % WINDOW_Y * DILATION_Y) - i32(PAD_Y);
    let x = i32(n % OUT_WIDTH * STRIDE_X + tap % WINDOW_X * DILATION_X) - i32(PAD_X);
    let inside = (u32(z) < DEPTH) & (u32(y) < HEIGHT) & (u32(x) < WIDTH);
    let at = select(0u, b_start + ((channel * DEPTH + u32(z)) * HEIGHT + u32(y)) * WIDTH + u32(x), inside & within);
    return select(0u, byte(select(padding, i32(b_at(at)) - i32(B_SHIFT), inside)), within);
}

// Four elements along k of each of four columns.
fn b_words(k: u32, n: u32) -> vec4<u32> {
#if B_WORDS
    let inside = (vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(K)) & vec4<bool>(n < N);
    let at = select(vec4<u32>(), vec4<u32>((b_start + k * B_K + n) / 4u) + vec4<u32>(0u, 1u, 2u, 3u) * (B_K / 4u), inside);
    let turn = select(0u, 0x80808080u, B_SHIFT == 128u);
    let rows = select(vec4<u32>(), vec4<u32>(b_word(at.x), b_word(at.y), b_word(at.z), b_word(at.w)) ^ vec4<u32>(turn), inside);
    let low = vec4<u32>(0xffu);
    var columns = vec4<u32>();
#for e in 4
    { let part = (rows >> vec4<u32>($(8 * e)u)) & low; columns[$e] = part.x | (part.y << 8u) | (part.z << 16u) | (part.w << 24u); }
#end
    return columns;
#else
    var columns = vec4<u32>();
#for e in 4
    columns[$e] = b_element(k, n + $(e)u) | (b_element(k + 1u, n + $(e)u) << 8u) | (b_element(k + 2u, n + $(e)u) << 16u)
        | (b_element(k + 3u, n + $(e)u) << 24u);
#end
    return columns;
#end
}

fn group_main(group: u32, lane: u32) {
    let n0 = group % TILES_N * TN;
    let m0 = group / TILES_N % TILES_M * TM;
    let batch = group / (TILES_N * TILES_M);
    let first = select(0u, batch % GROUP_COUNT * M, ZP_ROWS);
    a_start = a_base(batch);
    b_start = b_base(batch);
    padding = i32(b_zp_at(0u)) - i32(B_SHIFT);
    let row = lane / CQ * 4u;
    let column = lane % CQ * 4u;
#for e in 4
    var acc$e = vec4<i32>();
#end
    var row_sums = vec4<i32>();
    var column_sums = vec4<i32>();
    let ones = 0x01010101u;
#if REQUANTIZED
    let y_zero = bitcast<f32>(numbers_at(2u * OUTPUTS));
#end
    for (var k0 = 0u; k0 < K; k0 += STEP) {
        for (var t = lane; t < RQ * KQ; t += WORKGROUP_SIZE) {
            let m = m0 + t / KQ * 4u;
            let k = k0 + t % KQ * 4u;
            a_tile[t % KQ * RQ + t / KQ] = vec4<u32>(a_word_at(m, k), a_word_at(m + 1u, k), a_word_at(m + 2u, k), a_word_at(m + 3u, k));
        }
        for (var t = lane; t < CQ * KQ; t += WORKGROUP_SIZE) { b_tile[t] = b_words(k0 + t / CQ * 4u, n0 + t % CQ * 4u); }
        workgroupBarrier();
        for (var k = 0u; k < KQ; k++) {
            let a = a_tile[k * RQ + row / 4u];
            let b = b_tile[k * CQ + column / 4u];
#for e in 4
            acc$e += vec4<i32>(dot4I8Packed(a[$e], b.x), dot4I8Packed(a[$e], b.y), dot4I8Packed(a[$e], b.z), dot4I8Packed(a[$e], b.w));
#end
#if USE_B_ZP
            row_sums += vec4<i32>(dot4I8Packed(a.x, ones), dot4I8Packed(a.y, ones), dot4I8Packed(a.z, ones), dot4I8Packed(a.w, ones));
#end
#if USE_A_ZP
            column_sums += vec4<i32>(dot4I8Packed(b.x, ones), dot4I8Packed(b.y, ones), dot4I8Packed(b.z, ones), dot4I8Packed(b.w, ones));
#end
        }
        workgroupBarrier();
    }
#for e in 4
    {
        let m = m0 + row + $(e)u;
        if (m < M) {
            let a_zero = i32(a_zp_at((first + m) * A_ZP_ROW)) - i32(A_SHIFT);
            let its = batch % GROUP_COUNT * M + m;
            let n = n0 + column;
            let i = (batch * M + m) * N + n;
#if REQUANTIZED
            if (n < N) {
                var sums = vec4<i32>();
                var scales = vec4<f32>();
#for f in 4
                let b_zero$f = i32(b_zp_at((n + $(f)u) * B_ZP_COL)) - i32(B_SHIFT);
                let v$f = acc$e[$f] - a_zero * column_sums[$f] - b_zero$f * row_sums[$e] + i32(K) * a_zero * b_zero$f;
                let c$f = select(its, n + $(f)u, BY_COLUMN);
                sums[$f] = v$f + bitcast<i32>(numbers_at(c$f));
                scales[$f] = bitcast<f32>(numbers_at(OUTPUTS + c$f));
#end
                y_set_word(i / 4u, requantized(sums, scales, y_zero));
            }
#else
#for f in 4
            if (n + $(f)u < N) {
                let b_zero = i32(b_zp_at((n + $(f)u) * B_ZP_COL)) - i32(B_SHIFT);
                var v = acc$e[$f] - a_zero * column_sums[$f] - b_zero * row_sums[$e] + i32(K) * a_zero * b_zero;
                if (HAS_C) { v += i32(c_at(select(its, n + $(f)u, BY_COLUMN))); }
                y_set(i + $(f)u, v);
            }
#end
#end
        }
    }
#end
}
