// (2, 1, 1) workgroups
// gemm.wgsl
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> c: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
const M: u32 = 8u;
const N: u32 = 25u;
const K: u32 = 27u;
const BATCH: u32 = 2u;
const TM: u32 = 32u;
const TN: u32 = 64u;
const TK: u32 = 16u;
const TILES_M: u32 = 1u;
const TILES_N: u32 = 1u;
const SPLIT: u32 = 1u;
const STEPS: u32 = 2u;
const A_ROW: u32 = 27u;
const A_K: u32 = 1u;
const B_K: u32 = 25u;
const B_COL: u32 = 1u;
const A_K_FAST: bool = true;
const B_K_FAST: bool = false;
const IM2COL: bool = true;
const GRADIENT: bool = false;
const DEPTH: u32 = 1u;
const HEIGHT: u32 = 9u;
const WIDTH: u32 = 9u;
const OUT_DEPTH: u32 = 1u;
const OUT_HEIGHT: u32 = 5u;
const OUT_WIDTH: u32 = 5u;
const WINDOW_Z: u32 = 1u;
const WINDOW_Y: u32 = 3u;
const WINDOW_X: u32 = 3u;
const STRIDE_Z: u32 = 1u;
const STRIDE_Y: u32 = 2u;
const STRIDE_X: u32 = 2u;
const DILATION_Z: u32 = 1u;
const DILATION_Y: u32 = 1u;
const DILATION_X: u32 = 1u;
const PAD_Z: u32 = 0u;
const PAD_Y: u32 = 1u;
const PAD_X: u32 = 1u;
const A_IMAGE: u32 = 1u;
const B_IMAGE: u32 = 1u;
const ALPHA: f32 = 1.0f;
const BETA: f32 = 1.0f;
const HAS_C: bool = true;
fn a_base(i: u32) -> u32 {
    return u32(0i);
}
fn b_base(i: u32) -> u32 {
    return u32(i32(i) * 243i);
}
fn c_index(i: u32) -> u32 {
    return u32(i32(((i / 25u) % 8u)));
}
alias a_t = f32;
fn a_at(i: u32) -> f32 { return a[i]; }
alias b_t = f32;
fn b_at(i: u32) -> f32 { return b[i]; }
alias c_t = f32;
fn c_at(i: u32) -> f32 { return c[i]; }
alias y_t = f32;
fn y_at(i: u32) -> f32 { return y[i]; }
fn y_set(i: u32, v: y_t) { y[i] = v; }
// y[batch, m, n] = ALPHA * sum over k of A[m, k] * B[k, n] + BETA * c, a TM x TN tile by each workgroup.
// A step reads TK columns of A and rows of B into workgroup memory (two buffers in turn, so one barrier a step) while the
// loads of the next step are under way in registers. An invocation owns 4 x 4 elements: rows r + e * AQ and columns
// q + e * BQ, e = 0..3, so that neighbours read, and write, neighbouring columns.
// SPLIT > 1: K is cut into SPLIT parts, each summed into its own [BATCH, M, N] of y; sum_parts.wgsl adds them.
// Expects: a, b, c?, y; a_base, b_base (offset of a batch), c_index (over y); M N K BATCH, TM TN TK, TILES_M TILES_N, SPLIT, STEPS
// (of a part), A_ROW A_K B_K B_COL (strides), A_K_FAST B_K_FAST (neighbouring invocations read along k), ALPHA BETA.
// Sums of more than 32 steps are added up in blocks of 16: rounding errors stay those of a block.
// IM2COL: B is never stored: k is (channel, tap), n an output pixel; DEPTH.. of the input, OUT_.. of the output, the window and
// its steps as conv.py's Window.consts writes them. GRADIENT: k is (image, output pixel), n (channel, tap), in A, too: A_IMAGE, B_IMAGE
// elements between two images.
const AQ: u32 = TM / 4u;
const BQ: u32 = TN / 4u;
const A_CHUNKS: u32 = AQ * TK;
const B_CHUNKS: u32 = BQ * TK;
const A_SWIZZLE: u32 = select(0u, min(AQ, 8u) - 1u, A_K_FAST);   // spreads stores along k over the memory banks
const B_SWIZZLE: u32 = select(0u, min(BQ, 8u) - 1u, B_K_FAST);
const PIXELS: u32 = OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH;
const K_EXACT: bool = SPLIT * STEPS * TK == K;
var<workgroup> a_tile: array<vec4<f32>, 2u * A_CHUNKS>;
var<workgroup> b_tile: array<vec4<f32>, 2u * B_CHUNKS>;
var<private> a_start: u32;
var<private> b_start: u32;
var<private> pixel_z: vec4<i32>;
var<private> pixel_y: vec4<i32>;
var<private> pixel_x: vec4<i32>;
var<private> plane_start: vec4<i32>;   // GRADIENT: of the columns' channels
var<private> next_a: array<vec4<f32>, 2>;
var<private> next_b: array<vec4<f32>, 2>;
var<private> acc: mat4x4<f32>;   // a column for each of the four rows

// `&` and `|` calculate both sides: naga makes a branch of each `&&`, and a loop full of branches takes some drivers seconds to compile.
fn a_or_zero(m: u32, k: u32) -> f32 {
    if (((M % TM == 0u) | (m < M)) & (K_EXACT | (k < K))) {
        if (GRADIENT) { return a_at(a_start + m * A_ROW + k / PIXELS * A_IMAGE + k % PIXELS); }
        return a_at(a_start + m * A_ROW + k * A_K);
    }
    return 0.0;
}

fn b_or_zero(k: u32, n: u32) -> f32 {
    if (((N % TN == 0u) | (n < N)) & (K_EXACT | (k < K))) { return b_at(b_start + k * B_K + n * B_COL); }
    return 0.0;
}

fn pixel_or_zero(inside: bool, i: i32) -> f32 {
    if (inside) { return b_at(u32(i)); }
    return 0.0;
}

// Input position of the window's first tap, for the four columns that this invocation reads.
fn place_window(n0: u32) {
    let n = vec4<u32>(n0, n0 + BQ, n0 + 2u * BQ, n0 + 3u * BQ);
    let plane = OUT_HEIGHT * OUT_WIDTH;
    pixel_z = vec4<i32>(n / plane) * i32(STRIDE_Z) - i32(PAD_Z);
    pixel_y = vec4<i32>(n % plane / OUT_WIDTH) * i32(STRIDE_Y) - i32(PAD_Y);
    pixel_x = vec4<i32>(n % OUT_WIDTH) * i32(STRIDE_X) - i32(PAD_X);
    pixel_y = select(vec4<i32>(-0x40000000), pixel_y, n < vec4<u32>(N));   // a column past the end is outside of every row
}

// GRADIENT: where the tap of each of the four columns lies in a window.
fn place_taps(n0: u32) {
    let n = vec4<u32>(n0, n0 + BQ, n0 + 2u * BQ, n0 + 3u * BQ);
    let tap = n % (WINDOW_Z * WINDOW_Y * WINDOW_X);
    pixel_z = vec4<i32>(tap / (WINDOW_Y * WINDOW_X) * DILATION_Z) - i32(PAD_Z);
    pixel_y = vec4<i32>(tap / WINDOW_X % WINDOW_Y * DILATION_Y) - i32(PAD_Y);
    pixel_x = vec4<i32>(tap % WINDOW_X * DILATION_X) - i32(PAD_X);
    pixel_y = select(vec4<i32>(-0x40000000), pixel_y, n < vec4<u32>(N));
    plane_start = vec4<i32>(n / (WINDOW_Z * WINDOW_Y * WINDOW_X) * (DEPTH * HEIGHT * WIDTH));
}

fn gather_taps(k: u32) -> vec4<f32> {
    let p = k % PIXELS;
    let z = pixel_z + i32(p / (OUT_HEIGHT * OUT_WIDTH) * STRIDE_Z);
    let y = pixel_y + i32(p / OUT_WIDTH % OUT_HEIGHT * STRIDE_Y);
    let x = pixel_x + i32(p % OUT_WIDTH * STRIDE_X);
    var inside = (vec4<u32>(y) < vec4<u32>(HEIGHT)) & (vec4<u32>(x) < vec4<u32>(WIDTH)) & (vec4<u32>(z) < vec4<u32>(DEPTH));
    if (!K_EXACT) { inside = inside & vec4<bool>(k < K); }
    let i = plane_start + (z * i32(HEIGHT) + y) * i32(WIDTH) + x + i32(b_start + k / PIXELS * B_IMAGE);
    return vec4<f32>(pixel_or_zero(inside.x, i.x), pixel_or_zero(inside.y, i.y), pixel_or_zero(inside.z, i.z), pixel_or_zero(inside.w, i.w));
}

fn gather(k: u32) -> vec4<f32> {
    if (GRADIENT) { return gather_taps(k); }
    let tap = k % (WINDOW_Z * WINDOW_Y * WINDOW_X);
    let z = pixel_z + i32(tap / (WINDOW_Y * WINDOW_X) * DILATION_Z);
    let y = pixel_y + i32(tap / WINDOW_X % WINDOW_Y * DILATION_Y);
    let x = pixel_x + i32(tap % WINDOW_X * DILATION_X);
    let channel = k / (WINDOW_Z * WINDOW_Y * WINDOW_X);
    var inside = (vec4<u32>(y) < vec4<u32>(HEIGHT)) & (vec4<u32>(x) < vec4<u32>(WIDTH));
    if (DEPTH > 1u || i32(PAD_Z) != 0 || WINDOW_Z > 1u) { inside = inside & (vec4<u32>(z) < vec4<u32>(DEPTH)); }
    if (!K_EXACT) { inside = inside & vec4<bool>(k < K); }
    let i = ((i32(channel * DEPTH) + z) * i32(HEIGHT) + y) * i32(WIDTH) + x + i32(b_start);
    return vec4<f32>(pixel_or_zero(inside.x, i.x), pixel_or_zero(inside.y, i.y), pixel_or_zero(inside.z, i.z), pixel_or_zero(inside.w, i.w));
}

fn load_a(q: u32, m0: u32, k0: u32) -> vec4<f32> {
    if (A_CHUNKS % WORKGROUP_SIZE != 0u && q >= A_CHUNKS) { return vec4<f32>(); }
    let m = m0 + select(q % AQ, q / TK, A_K_FAST);
    let k = k0 + select(q / AQ, q % TK, A_K_FAST);
    return vec4<f32>(a_or_zero(m, k), a_or_zero(m + AQ, k), a_or_zero(m + 2u * AQ, k), a_or_zero(m + 3u * AQ, k));
}

fn load_b(q: u32, n0: u32, k0: u32) -> vec4<f32> {
    if (B_CHUNKS % WORKGROUP_SIZE != 0u && q >= B_CHUNKS) { return vec4<f32>(); }
    let n = n0 + select(q % BQ, q / TK, B_K_FAST);
    let k = k0 + select(q / BQ, q % TK, B_K_FAST);
    if (IM2COL) { return gather(k); }
    return vec4<f32>(b_or_zero(k, n), b_or_zero(k, n + BQ), b_or_zero(k, n + 2u * BQ), b_or_zero(k, n + 3u * BQ));
}

fn fetch(lane: u32, m0: u32, n0: u32, k0: u32) {
    next_a[0] = load_a(lane, m0, k0);
    next_b[0] = load_b(lane, n0, k0);
    if (A_CHUNKS > WORKGROUP_SIZE) { next_a[1] = load_a(lane + WORKGROUP_SIZE, m0, k0); }
    if (B_CHUNKS > WORKGROUP_SIZE) { next_b[1] = load_b(lane + WORKGROUP_SIZE, n0, k0); }
}

fn keep(q: u32, buffer: u32, a: vec4<f32>, b: vec4<f32>) {
    let ka = select(q / AQ, q % TK, A_K_FAST);
    let kb = select(q / BQ, q % TK, B_K_FAST);
    if (q < A_CHUNKS) { a_tile[buffer * A_CHUNKS + ka * AQ + (select(q % AQ, q / TK, A_K_FAST) ^ (ka & A_SWIZZLE))] = a; }
    if (q < B_CHUNKS) { b_tile[buffer * B_CHUNKS + kb * BQ + (select(q % BQ, q / TK, B_K_FAST) ^ (kb & B_SWIZZLE))] = b; }
}

fn multiply(buffer: u32, k: u32, row: u32, column: u32) {
    let a = a_tile[buffer * A_CHUNKS + k * AQ + (row ^ (k & A_SWIZZLE))];
    let b = b_tile[buffer * B_CHUNKS + k * BQ + (column ^ (k & B_SWIZZLE))];
    acc[0] = fma(vec4<f32>(a.x), b, acc[0]);
    acc[1] = fma(vec4<f32>(a.y), b, acc[1]);
    acc[2] = fma(vec4<f32>(a.z), b, acc[2]);
    acc[3] = fma(vec4<f32>(a.w), b, acc[3]);
}

fn group_main(group: u32, lane: u32) {
    let n0 = group % TILES_N * TN;
    let m0 = group / TILES_N % TILES_M * TM;
    let outer = group / (TILES_N * TILES_M);   // part * BATCH + batch
    let k0 = outer / BATCH * STEPS * TK;
    let row = lane / BQ;
    let column = lane % BQ;
    a_start = a_base(outer % BATCH);
    b_start = b_base(outer % BATCH);
    if (GRADIENT) { place_taps(n0 + column); } else if (IM2COL) { place_window(n0 + column); }
    fetch(lane, m0, n0, k0);
    var total = mat4x4<f32>();
    for (var step = 0u; step < STEPS; step++) {
        let buffer = step & 1u;
        keep(lane, buffer, next_a[0], next_b[0]);
        if (A_CHUNKS > WORKGROUP_SIZE || B_CHUNKS > WORKGROUP_SIZE) { keep(lane + WORKGROUP_SIZE, buffer, next_a[1], next_b[1]); }
        workgroupBarrier();
        if (step + 1u < STEPS) { fetch(lane, m0, n0, k0 + (step + 1u) * TK); }
        for (var k = 0u; k < TK; k += 4u) {
            multiply(buffer, k, row, column);
            multiply(buffer, k + 1u, row, column);
            multiply(buffer, k + 2u, row, column);
            multiply(buffer, k + 3u, row, column);
        }
        if (STEPS > 32u && step % 16u == 15u) {
            total += acc;
            acc = mat4x4<f32>();
        }
    }
    total += acc;
    for (var e = 0u; e < 16u; e++) {
        var own = total[0];
        if (e >= 4u) { own = total[1]; }
        if (e >= 8u) { own = total[2]; }
        if (e >= 12u) { own = total[3]; }
        let m = m0 + row + e / 4u * AQ;
        let n = n0 + column + e % 4u * BQ;
        if (m < M && n < N) {
            let i = (outer * M + m) * N + n;
            var v = ALPHA * own[e % 4u];
            if (HAS_C) { v += BETA * c_at(c_index(i)); }
            y_set(i, v);
        }
    }
}

const GROUPS: u32 = 2u;
const WORKGROUP_SIZE: u32 = 128u;
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = id.x + id.y * n.x;
    if (group >= GROUPS) { return; }
    group_main(group, lane);
}
