// y[b, n, m] = ALPHA * sum over k of x[b, n, k] * w[b, k, m] + BETA * c, on matrix units (chromium_experimental_subgroup_matrix): operands
// are float16, sums float32, in fragments of FN rows of FM columns and FK of k. A workgroup makes TM columns of TN rows; each subgroup has one of its GN x GM shares. A step
// brings TK of k into workgroup memory as float16, eight to a vector, while the next step's loads are under way in registers. Sums go
// through the same memory, FN rows of each subgroup at a time, to where the fused steps are done: with more of it a compute unit has room for
// one workgroup only, which took twice as long on an H100.
// X_FOURS, W_FOURS: an operand is bound as vectors along what is next to each other there; else it is read by elements. X_EIGHTS, W_EIGHTS:
// of 16 bits each, it is bound by eight.
// X_ROWS: what is next to each other in x is k (else n). W_ROWS: in w it is m, and its tile lies [k, m] (else k, and it lies [m, k]).
// X_PLAIN, W_PLAIN: it is bound as float16. X_BITS, W_BITS = 16 without it: weights stored as two halves a word.
// X_SCALED, W_SCALED: each line of it is multiplied by a power of two on the way in (line_scales.wgsl), w of 16 bits when it was stored.
// Y_FOURS: y and what the steps read are vectors along m. C_FOURS: so is c, [M].
// GROUP_COUNT > 1: of a convolution in groups, of C channels and M columns each, side by side in x, w and y; a workgroup's z is its group.
// IM2COL: of a convolution. Row n is an output pixel, k is (tap, channel of C), and the window is read in place. DEEP: over three spatial
// dimensions. PLANES: x is stored [image, channel, spatial...] with CHANNELS <= 4 of them, which count as C = 4. x_scales are those of PARTS parts of each image; a workgroup's rows are
// of X_SPANNED images at most. GIVES: parts of each image of y whose scales are stored, too, as y_scales [images, GIVES]: one a workgroup
// that has rows of the image, of SPANNED images at most. An image that fewer workgroups share than another has ones in between that change nothing.
// SPREAD: a column is (phase, filter), and a row's pixel makes STEP_Y x STEP_X pixels of y, as in product.wgsl; with 1 y is vectors, with 2 planes.
// CODES: w is packed codes of so many bits (2, 4, 8), rows of WORDS words along k, decoded on the way in; W_SCALED there
// means that `table` is. CODE_FOURS: four words are bound together.
// SPLIT > 1: k is cut into parts of PER, each of another workgroup (its z); the one of a tile that arrives last adds the parts up, in their order.
// Expects: x, w, c?, y; with SPLIT > 1 parts (vectors) and arrived (atomics, zero); x_scales, w_scales of each line where it is scaled, for each batch with X_BATCHES, W_BATCHES; x_base(b), w_base(b), c_index(i);
// X_N X_K W_M W_K the strides; N M K; K_WHOLE: K is a multiple of TK; TM TN TK GM GN; FN FM FK where they are not 16; with IM2COL POINTWISE and HEIGHT.. (Window.consts).
#include fragments.wgsl
#let x_row = TK // 8 + 1
#let w_row = TM // 8 + 1 if W_ROWS else TK // 8 + 1
#let w_rows = TK if W_ROWS else TM
#let x_loads = TN * TK // 8 // WORKGROUP_SIZE
#let w_loads = TM * TK // 8 // WORKGROUP_SIZE
#let own_n = TN // GN
#let own_m = TM // GM
#let x_parts = 1 if X_FOURS and X_EIGHTS and X_BITS == 16 else 2
#let w_parts = 1 if W_FOURS and W_EIGHTS and W_BITS == 16 else 2
#let x_size = TN * x_row
#let both = x_size + w_rows * w_row
#let stage_row = TM // 4 + 2
#let staged = GN * FN * stage_row
#let stores = GN * FN * TM // 4 // WORKGROUP_SIZE
#let lanes_row = TK // 8 // w_loads
#let code_words = (w_loads * CODES + 3) // 4
#let code_scales = 1 if not BLOCK or BLOCK % (8 * w_loads) == 0 else w_loads
var<workgroup> tile: array<vec4<u32>, $(both if both > staged else staged)>;
#if SPLIT > 1
var<workgroup> place: u32;
#end
#if IM2COL and X_SCALED
var<workgroup> row_scales: array<f32, TN>;
var<workgroup> least: array<atomic<u32>, X_SPANNED>;
#end
#if GIVES
#include scale_of.wgsl
var<workgroup> most: array<atomic<u32>, SPANNED>;
#end

#if x_parts == 1
alias x_loaded = vec4<u32>;
#else
#if X_FOURS
alias x_loaded = x_four_t;
fn x_halves(v: x_loaded, scale: vec4<f32>) -> vec2<u32> {
#if X_PLAIN
    return bitcast<vec2<u32>>(v);
#else
#if X_BITS == 16
    return v;
#else
#if X_SCALED
    let s = v * scale;
    return vec2<u32>(pack2x16float(s.xy), pack2x16float(s.zw));
#else
    return vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw));
#end
#end
#end
}
#else
alias x_loaded = vec4<f32>;
fn x_halves(v: x_loaded, scale: vec4<f32>) -> vec2<u32> {
#if X_SCALED
    let s = v * scale;
#else
    let s = v;
#end
    return vec2<u32>(pack2x16float(s.xy), pack2x16float(s.zw));
}
#end
#end

#if CODES
// Packed codes as operands of matrix_product.wgsl. Expects: w, table [blocks, M] (scales, times a power of two for each column), zp?;
// CODES (bits of a code) WORDS (of a row) FLIP BLOCK (codes that share a scale, 0: a row), and what zero_point.wgsl has.
#include zero_point.wgsl

// (code - zero) * scale, of a code where it lies: `bits` is code * 2^s below 2^16, `zero` 2^23 + zero * 2^s, and scale is over 2^s. 2^23 is a
// float whose low bits are the whole numbers above it, so that nothing is rounded but the product.
fn weight(bits: u32, zero: f32, scale: f32) -> f32 { return (bitcast<f32>(bits | 0x4b000000u) - zero) * scale; }
#else
#if w_parts == 1
alias w_loaded = vec4<u32>;
#else
#if W_FOURS
alias w_loaded = w_four_t;
fn w_halves(v: w_loaded, scale: vec4<f32>) -> vec2<u32> {
#if W_PLAIN
    return bitcast<vec2<u32>>(v);
#else
#if W_BITS == 16
    return v;
#else
#if W_SCALED
    let s = v * scale;
    return vec2<u32>(pack2x16float(s.xy), pack2x16float(s.zw));
#else
    return vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw));
#end
#end
#end
}
#else
alias w_loaded = vec4<f32>;
fn w_halves(v: w_loaded, scale: vec4<f32>) -> vec2<u32> {
#if W_SCALED and W_BITS == 32
    let s = v * scale;
#else
    let s = v;
#end
    return vec2<u32>(pack2x16float(s.xy), pack2x16float(s.zw));
}
#end
#end
#end

#if IM2COL and not POINTWISE
// Of the window's tap and channel that k is: rows down and across from the window's first pixel, how far in x, and planes behind. Far out
// behind the last k.
#if DEEP
alias tap_t = vec4<i32>;
fn tap_of(k: u32) -> tap_t {
    let tap = k / $(C)u;
    let dz = i32(tap / (WINDOW_Y * WINDOW_X) * DILATION_Z);
    let dy = i32(tap / WINDOW_X % WINDOW_Y * DILATION_Y);
    let dx = i32(tap % WINDOW_X * DILATION_X);
    let away = (dz * i32(HEIGHT) + dy) * i32(WIDTH) + dx;
#if PLANES
    return tap_t(select(dy, -0x40000000, k >= K), dx, away, dz);
#else
    return tap_t(select(dy, -0x40000000, k >= K), dx, away * $(GROUP_COUNT * C) + i32(k % $(C)u), dz);
#end
}

alias first_t = vec3<i32>;
fn inside(first: first_t, tap: tap_t) -> bool {
    return u32(first.x + tap.x) < HEIGHT && u32(first.y + tap.y) < WIDTH && u32(first.z + tap.w) < DEPTH;
}
#else
alias tap_t = vec3<i32>;
fn tap_of(k: u32) -> tap_t {
    let tap = k / $(C)u;
    let dy = i32(tap / WINDOW_X * DILATION_Y);
    let dx = i32(tap % WINDOW_X * DILATION_X);
#if PLANES
    return tap_t(select(dy, -0x40000000, k >= K), dx, dy * i32(WIDTH) + dx);
#else
    return tap_t(select(dy, -0x40000000, k >= K), dx, (dy * i32(WIDTH) + dx) * $(GROUP_COUNT * C) + i32(k % $(C)u));
#end
}

alias first_t = vec2<i32>;
fn inside(first: first_t, tap: tap_t) -> bool { return u32(first.x + tap.x) < HEIGHT && u32(first.y + tap.y) < WIDTH; }
#end

fn load_x(base: i32, first: first_t, tap: tap_t) -> x_loaded {
    if (!inside(first, tap)) { return x_loaded(); }
#if PLANES
    let at = u32(base + tap.z);
    var v = vec4<f32>(x_at(at), 0.0, 0.0, 0.0);
#for channel in CHANNELS - 1
    v[$(channel + 1)] = x_at(at + $(channel + 1)u * DEPTH * HEIGHT * WIDTH);
#end
    return v;
#else
#if x_parts == 1
    return x_eight(u32(base + tap.z) / 8u);
#else
    return x_four(u32(base + tap.z) / 4u);
#end
#end
}
#else
#if X_FOURS
// What lies at `place` (in vectors) in x, from k on; zeros behind the last of k.
fn load_x(place: u32, k: u32) -> x_loaded {
#if not K_WHOLE
    if (k >= K) { return x_loaded(); }
#end
#if x_parts == 1
    return x_eight(place);
#else
    return x_four(place);
#end
}
#else
// Four elements of k of the row of x that begins at `row`.
fn load_x(row: u32, k: u32) -> x_loaded {
    var v = vec4<f32>();
    let at = row + k * X_K;
#for i in 4
    if (k + $(i)u < K) { v[$i] = x_at(at + $(i)u * X_K); }
#end
    return v;
}
#end
#end

#if not CODES
#if W_FOURS
// What lies at `place` (in vectors) in w, from column m and k on.
fn load_w(place: u32, m: u32, k: u32) -> w_loaded {
#if not K_WHOLE
    if (k >= K) { return w_loaded(); }
#end
#if W_ROWS
    if (m >= M) { return w_loaded(); }
#end
#if w_parts == 1
    return w_eight(place);
#else
    return w_four(place);
#end
}
#else
// Four columns of a k from m on (W_ROWS), else four k of a column.
fn load_w(base: u32, m: u32, k: u32) -> w_loaded {
    var v = vec4<f32>();
    let at = base + k * W_K + m * W_M;
#if W_ROWS
    if (k >= K) { return v; }
#for i in 4
    if (m + $(i)u < M) { v[$i] = w_at(at + $(i)u * W_M); }
#end
#else
#for i in 4
    if (k + $(i)u < K) { v[$i] = w_at(at + $(i)u * W_K); }
#end
#end
    return v;
}
#end
#end

#if X_SCALED or W_SCALED
fn x_scale(batch: u32, n: u32) -> f32 {
#if not X_SCALED
    return 1.0;
#else
#if IM2COL
    return row_scales[n % TN];
#else
#if X_BATCHES
    return x_scales_at(batch * N + n);
#else
    return x_scales_at(n);
#end
#end
#end
}

fn w_scale(batch: u32, m: u32) -> f32 {
#if W_SCALED
#if W_BATCHES
    return w_scales_at(batch * M + min(m, M - 1u));
#else
    return w_scales_at(min(m, M - 1u));
#end
#else
    return 1.0;
#end
}

fn w_scale4(batch: u32, m: u32) -> vec4<f32> {
    return vec4<f32>(w_scale(batch, m), w_scale(batch, m + 1u), w_scale(batch, m + 2u), w_scale(batch, m + 3u));
}

// A number over the product of two powers of two, of which each could bring it out of float32's range while both together don't.
fn scaled_back(v: vec4<f32>, x_bits: u32, w_bits: vec4<u32>) -> vec4<f32> {
    let e = vec4<i32>(254 - i32(x_bits >> 23u)) - vec4<i32>(w_bits >> vec4<u32>(23u));
    let some = e / 2;
    let first = bitcast<vec4<f32>>(vec4<u32>(some + 127) << vec4<u32>(23u));
    return v * first * bitcast<vec4<f32>>(vec4<u32>(e - some + 127) << vec4<u32>(23u));
}
#end

// Of a workgroup's rows that which vector e of a round is in.
fn stored_row(round: u32, e: u32) -> u32 {
    let line = e / $(TM // 4)u;
    return line / $(FN)u * $(own_n)u + round * $(FN)u + line % $(FN)u;
}

#if SPREAD
const NOWHERE: u32 = 0xffffffffu;

#include spread.wgsl
#end

#if Y_FOURS
// Where in y, in elements, four columns of a row are; of what is beyond the edges, where the last are (where SPREAD, the first of all).
fn place_of(n: u32, m: u32, batch: u32) -> u32 {
#if SPREAD
    let at = spread(min(n, N - 1u), min(m, M - 4u) / 4u);
    return select(4u * at, 0u, at == NOWHERE);
#else
#if GROUP_COUNT > 1
    return (min(n, N - 1u) * GROUP_COUNT + batch) * M + min(m, M - 4u);
#else
    return (batch * N + min(n, N - 1u)) * M + min(m, M - 4u);
#end
#end
}
#end

fn grid_main(group: vec3<u32>, lane: u32) {
    let m_first = group.x * TM;
    let n_first = group.y * TN;
#if SPLIT > 1
    let batch = 0u;
    let k_first = group.z * PER;
    let k_end = min(K, k_first + PER);
#else
    let batch = group.z;
    let k_first = 0u;
    let k_end = K;
#end
    let x_start = x_base(batch);
    let w_start = w_base(batch);
#if IM2COL
    let first_image = n_first / (OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH);
#if X_SCALED
    for (var e = lane; e < X_SPANNED; e += WORKGROUP_SIZE) { atomicStore(&least[e], 0x7f800000u); }
#end
#if GIVES
    for (var e = lane; e < SPANNED; e += WORKGROUP_SIZE) { atomicStore(&most[e], 0u); }
#end
#end
#for i in x_loads
    let xe$i = lane + $(i * WORKGROUP_SIZE)u;
#if X_ROWS
    let xn$i = xe$i / $(TK // 8)u;
    let xk$i = xe$i % $(TK // 8)u;
#else
    let xn$i = xe$i % TN;
    let xk$i = xe$i / TN;
#end
    let xr$i = min(n_first + xn$i, N - 1u);
    let xt$i = xn$i * $(x_row)u + xk$i;
#if IM2COL
    let image$i = xr$i / (OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH);
    let pixel$i = xr$i - image$i * (OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH);
    let line$i = pixel$i / OUT_WIDTH;
    let ox$i = pixel$i - line$i * OUT_WIDTH;
#if DEEP
    let oz$i = line$i / OUT_HEIGHT;
    let oy$i = line$i - oz$i * OUT_HEIGHT;
#else
    let oy$i = line$i;
#end
#if POINTWISE
#if DEEP
    let xl$i = (image$i * DEPTH + oz$i * STRIDE_Z) * HEIGHT + oy$i * STRIDE_Y;
#else
    let xl$i = image$i * HEIGHT + oy$i * STRIDE_Y;
#end
    let xb$i = (xl$i * WIDTH + ox$i * STRIDE_X) * $(GROUP_COUNT * C)u + x_start;
#else
    let top$i = i32(oy$i * STRIDE_Y) - i32(PAD_Y);
    let left$i = i32(ox$i * STRIDE_X) - i32(PAD_X);
#let planes = CHANNELS if PLANES else 1
#if DEEP
    let front$i = i32(oz$i * STRIDE_Z) - i32(PAD_Z);
    let first$i = first_t(top$i, left$i, front$i);
    let xl$i = (i32(image$i * $(planes)u * DEPTH) + front$i) * i32(HEIGHT) + top$i;
#else
    let first$i = first_t(top$i, left$i);
    let xl$i = i32(image$i * $(planes)u * HEIGHT) + top$i;
#end
#if PLANES
    let xb$i = xl$i * i32(WIDTH) + left$i;
#else
    let xb$i = (xl$i * i32(WIDTH) + left$i) * $(GROUP_COUNT * C) + i32(x_start);
#end
#end
#else
    let xb$i = x_start + xr$i * X_N;
#end
#if X_FOURS and not (IM2COL and not POINTWISE)
    let xp$i = (xb$i + xk$i * 8u) / $(8 // x_parts)u;
#end
#end
#if CODES
    let cm = min(m_first + lane / $(lanes_row)u, M - 1u);
    let ck = lane % $(lanes_row)u * $(8 * w_loads)u;
#for i in w_loads
    let wt$i = lane / $(lanes_row)u * $(w_row)u + lane % $(lanes_row)u * $(w_loads)u + $(i)u;
#end
#for q in code_words
    var c$q = 0u;
#end
#for g in code_scales
    var cs$g = 0.0;
    var cz$g = 0.0;
#end
#else
#for i in w_loads
    let we$i = lane + $(i * WORKGROUP_SIZE)u;
#if W_ROWS
    let wm$i = m_first + we$i % $(TM // 8)u * 8u;
    let wk$i = we$i / $(TM // 8)u;
    let wt$i = wk$i * $(w_row)u + we$i % $(TM // 8)u;
#else
    let wm$i = min(m_first + we$i / $(TK // 8)u, M - 1u);
    let wk$i = we$i % $(TK // 8)u * 8u;
    let wt$i = we$i / $(TK // 8)u * $(w_row)u + we$i % $(TK // 8)u;
#end
#if W_FOURS and W_ROWS
    let wp$i = (w_start + wk$i * W_K + wm$i) / $(8 // w_parts)u;
#end
#if W_FOURS and not W_ROWS
    let wp$i = (w_start + wm$i * W_M + wk$i) / $(8 // w_parts)u;
#end
#for h in 2
#if W_SCALED and W_BITS != 16
#if W_ROWS
    let ws$(i)_$h = w_scale4(batch, wm$i + $(4 * h)u);
#else
    let ws$(i)_$h = vec4<f32>(w_scale(batch, wm$i));
#end
#else
    let ws$(i)_$h = vec4<f32>();
#end
#end
#end
#end
#for i in x_loads
#for h in x_parts
    var x$(i)_$h = x_loaded();
#end
#end
#if not CODES
#for i in w_loads
#for h in w_parts
    var w$(i)_$h = w_loaded();
#end
#end
#end
    {
        let next = k_first;
#include matrix_loads.wgsl
    }
#if IM2COL and X_SCALED
    // while the first loads are under way
    workgroupBarrier();
    for (var e = lane; e < X_SPANNED * PARTS; e += WORKGROUP_SIZE) {
        let image = first_image + e / PARTS;
        if (image * (OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH) < N) { atomicMin(&least[e / PARTS], bitcast<u32>(x_scales_at(image * PARTS + e % PARTS))); }
    }
    workgroupBarrier();
    for (var e = lane; e < TN; e += WORKGROUP_SIZE) {
        row_scales[e] = bitcast<f32>(atomicLoad(&least[min(n_first + e, N - 1u) / (OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH) - first_image]));
    }
    workgroupBarrier();
#end
#for i in x_loads
#if X_SCALED
    let xs$i = vec4<f32>(x_scale(batch, xr$i));
#else
    let xs$i = vec4<f32>();
#end
#end
    let x_own = subgroup_id / $(GM)u * $(own_n * x_row)u;
#if W_ROWS
    let w_own = $(x_size)u + subgroup_id % $(GM)u * $(own_m // 8)u;
#else
    let w_own = $(x_size)u + subgroup_id % $(GM)u * $(own_m * w_row)u;
#end
#for i in own_n // FN
#for j in own_m // FM
    var s$(i)_$j = sums_t();
#end
#end
    for (var k = k_first; k < k_end; k += TK) {
        workgroupBarrier();
#for i in x_loads
#if x_parts == 1
        tile[xt$i] = x$(i)_0;
#else
        tile[xt$i] = vec4<u32>(x_halves(x$(i)_0, xs$i), x_halves(x$(i)_1, xs$i));
#end
#end
#if CODES
// What a lane of matrix_product.wgsl has of w, from codes in c<q>, scales in cs<g> and zero points in cz<g> into the tile: eight to a vector.
#for g in code_scales
#for s in 16 // CODES
        let cz$(g)_$s = fma(cz$g, bitcast<f32>($((127 + s * CODES) * 8388608)u), 8388608.0);
        let cs$(g)_$s = cs$g * bitcast<f32>($((127 - s * CODES) * 8388608)u);
#end
#end
#for q in code_words
#if w_loads * CODES % 4
        let own$q = (c$q ^ FLIP) >> (ck * $(CODES)u % 32u);
#else
        let own$q = c$q ^ FLIP;
#end
        let upper$q = own$q >> 16u;
#end
#for i in w_loads
#let g = i if code_scales > 1 else 0
#for p in 4
#let at = (8 * i + 2 * p) * CODES
#let s = at % 16 // CODES
#let q = at // 32
#if at % 32 < 16
        let half$(i)_$p = own$q;
#else
        let half$(i)_$p = upper$q;
#end
        let pair$(i)_$p = pack2x16float(vec2<f32>(
            weight(half$(i)_$p & (((1u << $(CODES)u) - 1u) << $(s * CODES)u), cz$(g)_$s, cs$(g)_$s),
            weight(half$(i)_$p & (((1u << $(CODES)u) - 1u) << $((s + 1) * CODES)u), cz$(g)_$(s + 1), cs$(g)_$(s + 1))));
#end
        tile[$(x_size)u + wt$i] = vec4<u32>(pair$(i)_0, pair$(i)_1, pair$(i)_2, pair$(i)_3);
#end
#else
#for i in w_loads
#if w_parts == 1
        tile[$(x_size)u + wt$i] = w$(i)_0;
#else
        tile[$(x_size)u + wt$i] = vec4<u32>(w_halves(w$(i)_0, ws$(i)_0), w_halves(w$(i)_1, ws$(i)_1));
#end
#end
#end
        workgroupBarrier();
        if (k + TK < k_end) {
            let next = k + TK;
#include matrix_loads.wgsl
        }
#for q in TK // FK
        {
#for j in own_m // FM
#if W_ROWS
            let b$j = subgroupMatrixLoad<right_t, row_major>(&tile, w_own + $(q * FK * w_row + j * FM // 8)u, $(w_row)u);
#else
            let b$j = subgroupMatrixLoad<right_t, col_major>(&tile, w_own + $(j * FM * w_row + q * FK // 8)u, $(w_row)u);
#end
#end
#for i in own_n // FN
            let a$i = subgroupMatrixLoad<left_t, row_major>(&tile, x_own + $(i * FN * x_row + q * FK // 8)u, $(x_row)u);
#for j in own_m // FM
            s$(i)_$j = subgroupMatrixMultiplyAccumulate(a$i, b$j, s$(i)_$j);
#end
#end
        }
#end
    }
#if GIVES
#for image in SPANNED if SPANNED <= APART else 1
    var largest$image = 0u;
#end
#end
    // what the fused steps read is under way a round before it is used
#if Y_FOURS
#for u in stores
    let beside0_$u = y_beside4(place_of(n_first + stored_row(0u, lane + $(u * WORKGROUP_SIZE)u), m_first + lane % $(TM // 4)u * 4u, batch) / 4u);
#end
#end
    // a lane has the same columns in every row that it stores
    let m = m_first + lane % $(TM // 4)u * 4u;
#if X_SCALED or W_SCALED
    let w_bits = bitcast<vec4<u32>>(w_scale4(batch, m));
#end
#if HAS_C and C_FOURS
#if GROUP_COUNT > 1
    let bias = BETA * c_at4((batch * M + min(m, M - 4u)) / 4u);
#else
#if SPREAD
    let bias = BETA * c_at4(min(m, M - 4u) / 4u % FILTERS);
#else
    let bias = BETA * c_at4(min(m, M - 4u) / 4u);
#end
#end
#end
    let own_stage = subgroup_id / $(GM)u * $(FN * stage_row)u + subgroup_id % $(GM)u * $(own_m // 4)u;
#if SPLIT > 1
    let counter = group.y * $((M + TM - 1) // TM)u + group.x;
    let own_part = counter * $(SPLIT * (own_n // FN) * stores)u;
#for i in own_n // FN
#include staged_sums.wgsl
#for u in stores
    parts[(own_part + group.z * $(own_n // FN * stores)u + $(i * stores + u)u) * WORKGROUP_SIZE + lane] = bitcast<vec4<f32>>(
        tile[(lane + $(u * WORKGROUP_SIZE)u) / $(TM // 4)u * $(stage_row)u + lane % $(TM // 4)u]);
#end
#end
#include last_arriving.wgsl
#end
#for i in own_n // FN
#if SPLIT == 1
#include staged_sums.wgsl
#end
#if SPLIT > 1
#for u in stores
    var v$(i)_$u = vec4<f32>();
#end
#let once = 4 if SPLIT > 4 else SPLIT
#for few in (SPLIT + once - 1) // once
#for p in once
#if few * once + p < SPLIT
#for u in stores
    let p$(i)_$(few * once + p)_$u = parts[(own_part + $((few * once + p) * (own_n // FN) * stores + i * stores + u)u) * WORKGROUP_SIZE + lane];
#end
#end
#end
#for p in once
#if few * once + p < SPLIT
#for u in stores
    v$(i)_$u += p$(i)_$(few * once + p)_$u;
#end
#end
#end
#end
#end
#if Y_FOURS and i + 1 < own_n // FN
#for u in stores
    let beside$(i + 1)_$u = y_beside4(place_of(n_first + stored_row($(i + 1)u, lane + $(u * WORKGROUP_SIZE)u), m, batch) / 4u);
#end
#end
    // all of a round: a store in between would keep the next load waiting
#for u in stores
    let line$(i)_$u = (lane + $(u * WORKGROUP_SIZE)u) / $(TM // 4)u;
    let n$(i)_$u = n_first + stored_row($(i)u, lane + $(u * WORKGROUP_SIZE)u);
    let m$(i)_$u = m;
#if SPLIT == 1
    var v$(i)_$u = bitcast<vec4<f32>>(tile[line$(i)_$u * $(stage_row)u + lane % $(TM // 4)u]);
#end
#if X_SCALED or W_SCALED
    v$(i)_$u = scaled_back(
        v$(i)_$u, bitcast<u32>(x_scale(batch, min(n$(i)_$u, N - 1u))), w_bits);
#end
    v$(i)_$u *= ALPHA;
#if Y_FOURS
    let at$(i)_$u = place_of(n$(i)_$u, m, batch);
#if HAS_C
#if C_FOURS
    v$(i)_$u += bias;
#else
    v$(i)_$u += BETA * vec4<f32>(c_at(c_index(at$(i)_$u)), c_at(c_index(at$(i)_$u + 1u)), c_at(c_index(at$(i)_$u + 2u)), c_at(c_index(at$(i)_$u + 3u)));
#end
#end
    let final$(i)_$u = y_finished4(at$(i)_$u / 4u, v$(i)_$u, beside$(i)_$u);
#end
#end
#for u in stores
    if (n$(i)_$u < N && m$(i)_$u < M) {
#if Y_FOURS
#if SPREAD
        if (spread(n$(i)_$u, m / 4u) != NOWHERE) { y_store4(at$(i)_$u / 4u, final$(i)_$u); }
#else
        y_store4(at$(i)_$u / 4u, final$(i)_$u);
#end
#if GIVES
#if SPREAD
        let bits = select(0u, finite_bits(final$(i)_$u), spread(n$(i)_$u, m / 4u) != NOWHERE);
#else
        let bits = finite_bits(final$(i)_$u);
#end
#if SPANNED == 1
        largest0 = max(largest0, bits);
#else
        let image = n$(i)_$u / (OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH) - first_image;
#if SPANNED <= APART
#for image in SPANNED
        largest$image = max(largest$image, select(0u, bits, image == $(image)u));
#end
#else
        atomicMax(&most[image], bits);
#end
#end
#end
#else
#if SPREAD
#for j in 4
        {
            let m = m$(i)_$u + $(j)u;
            let at = spread(n$(i)_$u, m);
#if HAS_C
            let v = v$(i)_$u[$j] + BETA * c_at(m % FILTERS);
#else
            let v = v$(i)_$u[$j];
#end
            if (at != NOWHERE) { y_set(at, v); }
        }
#end
#else
        let at = (batch * N + n$(i)_$u) * M + m$(i)_$u;
#for j in 4
        if (m$(i)_$u + $(j)u < M) {
#if HAS_C
            y_set(at + $(j)u, v$(i)_$u[$j] + BETA * c_at(c_index(at + $(j)u)));
#else
            y_set(at + $(j)u, v$(i)_$u[$j]);
#end
        }
#end
#end
#end
    }
#end
#end
#if GIVES
#let columns = (M + TM - 1) // TM
#if SPANNED <= APART
#for image in SPANNED
    atomicMax(&most[$image], largest$image);
#end
#end
    workgroupBarrier();
    for (var e = lane; e < SPANNED; e += WORKGROUP_SIZE) {
        let image = first_image + e;
        let pixel = image * (OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH);
        if (pixel < min(n_first + TN, N)) {
            let part = image * GIVES + (group.y - pixel / TN) * $(GROUP_COUNT * columns)u + batch * $(columns)u + group.x;
            y_scales_set(part, scale_of(atomicLoad(&most[e]), 0));
            if (pixel + (OUT_DEPTH * OUT_HEIGHT * OUT_WIDTH) <= n_first + TN) {
                for (var unused = part + $(GROUP_COUNT * columns)u; unused < (image + 1u) * GIVES; unused += $(GROUP_COUNT * columns)u) {
                    y_scales_set(unused, scale_of(0u, 0));
                }
            }
        }
    }
#end
}
