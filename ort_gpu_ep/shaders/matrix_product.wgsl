// y[b, n, m] = ALPHA * sum over k of x[b, n, k] * w[b, k, m] + BETA * c, on matrix units (chromium_experimental_subgroup_matrix): operands
// are float16, sums float32, in fragments of 16 x 16. A workgroup makes TM columns of TN rows; each subgroup has one of its GN x GM shares. A step
// brings TK of k into workgroup memory as float16, eight to a vector, while the next step's loads are under way in registers. Sums go
// through workgroup memory, 16 rows of each subgroup at a time, to where the fused steps are done.
// X_FOURS, W_FOURS: an operand is bound as vectors along what is next to each other there; else it is read by elements.
// X_ROWS: what is next to each other in x is k (else n). W_ROWS: in w it is m, and its tile lies [k, m] (else k, and it lies [m, k]).
// PLAIN_HALVES: operands are the model's float16. X_BITS, W_BITS = 16 without it: weights stored as two halves a word.
// SCALED: x and w are float32, and each of their lines is multiplied by a power of two on the way in (line_scales.wgsl).
// Y_FOURS: y and what the steps read are vectors along m. C_FOURS: so is c, [M].
// Expects: x, w, c?, y; x_scales, w_scales of each line where SCALED, for each batch with X_BATCHES, W_BATCHES; x_base(b), w_base(b), c_index(i); X_N X_K W_M W_K the
// strides; N M K; K_WHOLE: K is a multiple of TK; TM TN TK GM GN.
alias left_t = subgroup_matrix_left<f16, 16, 16>;
alias right_t = subgroup_matrix_right<f16, 16, 16>;
alias sums_t = subgroup_matrix_result<f32, 16, 16>;
#let x_row = TK // 8 + 1
#let w_row = TM // 8 + 1 if W_ROWS else TK // 8 + 1
#let w_rows = TK if W_ROWS else TM
#let x_loads = TN * TK // 8 // WORKGROUP_SIZE
#let w_loads = TM * TK // 8 // WORKGROUP_SIZE
#let own_n = TN // GN
#let own_m = TM // GM
#let stage_row = TM + 8
var<workgroup> x_tile: array<vec4<u32>, $(TN * x_row)>;
var<workgroup> w_tile: array<vec4<u32>, $(w_rows * w_row)>;
var<workgroup> stage: array<f32, $(GN * 16 * stage_row)>;

#if X_FOURS
alias x_loaded = x_four_t;
fn x_halves(v: x_loaded, scale: vec4<f32>) -> vec2<u32> {
#if PLAIN_HALVES
    return bitcast<vec2<u32>>(v);
#else
#if X_BITS == 16
    return v;
#else
#if SCALED
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
#if SCALED
    let s = v * scale;
#else
    let s = v;
#end
    return vec2<u32>(pack2x16float(s.xy), pack2x16float(s.zw));
}
#end

#if W_FOURS
alias w_loaded = w_four_t;
fn w_halves(v: w_loaded, scale: vec4<f32>) -> vec2<u32> {
#if PLAIN_HALVES
    return bitcast<vec2<u32>>(v);
#else
#if W_BITS == 16
    return v;
#else
#if SCALED
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
#if SCALED
    let s = v * scale;
#else
    let s = v;
#end
    return vec2<u32>(pack2x16float(s.xy), pack2x16float(s.zw));
}
#end

// Four elements of k of row n of x, zeros behind the last of k. A row behind the last repeats it: its sums are not stored.
fn load_x(base: u32, n: u32, k: u32) -> x_loaded {
#if X_FOURS
#if not K_WHOLE
    if (k >= K) { return x_loaded(); }
#end
    return x_four((base + n * X_N + k) / 4u);
#else
    var v = vec4<f32>();
    let at = base + n * X_N + k * X_K;
#for i in 4
    if (k + $(i)u < K) { v[$i] = x_at(at + $(i)u * X_K); }
#end
    return v;
#end
}

// Of w: four columns of a k from m on (W_ROWS), else four k of a column.
fn load_w(base: u32, m: u32, k: u32) -> w_loaded {
#if W_ROWS
#if not K_WHOLE
    if (k >= K) { return w_loaded(); }
#end
#if W_FOURS
    if (m >= M) { return w_loaded(); }
    return w_four((base + k * W_K + m) / 4u);
#else
    var v = vec4<f32>();
    let at = base + k * W_K + m * W_M;
#for i in 4
    if (m + $(i)u < M) { v[$i] = w_at(at + $(i)u * W_M); }
#end
    return v;
#end
#else
#if W_FOURS
#if not K_WHOLE
    if (k >= K) { return w_loaded(); }
#end
    return w_four((base + m * W_M + k) / 4u);
#else
    var v = vec4<f32>();
    let at = base + k * W_K + m * W_M;
#for i in 4
    if (k + $(i)u < K) { v[$i] = w_at(at + $(i)u * W_K); }
#end
    return v;
#end
#end
}

#if SCALED
fn x_scale(batch: u32, n: u32) -> f32 {
#if X_BATCHES
    return x_scales_at(batch * N + n);
#else
    return x_scales_at(n);
#end
}

fn w_scale(batch: u32, m: u32) -> f32 {
#if W_BATCHES
    return w_scales_at(batch * M + min(m, M - 1u));
#else
    return w_scales_at(min(m, M - 1u));
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

fn grid_main(group: vec3<u32>, lane: u32) {
    let m_first = group.x * TM;
    let n_first = group.y * TN;
    let batch = group.z;
    let x_start = x_base(batch);
    let w_start = w_base(batch);
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
#if SCALED
    let xs$i = vec4<f32>(x_scale(batch, xr$i));
#else
    let xs$i = vec4<f32>();
#end
#end
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
#for h in 2
#if SCALED
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
#for i in x_loads
#for h in 2
    var x$(i)_$h = load_x(x_start, xr$i, xk$i * 8u + $(4 * h)u);
#end
#end
#for i in w_loads
#for h in 2
#if W_ROWS
    var w$(i)_$h = load_w(w_start, wm$i + $(4 * h)u, wk$i);
#else
    var w$(i)_$h = load_w(w_start, wm$i, wk$i + $(4 * h)u);
#end
#end
#end
    let x_own = subgroup_id / $(GM)u * $(own_n * x_row)u;
#if W_ROWS
    let w_own = subgroup_id % $(GM)u * $(own_m // 8)u;
#else
    let w_own = subgroup_id % $(GM)u * $(own_m * w_row)u;
#end
#for i in own_n // 16
#for j in own_m // 16
    var s$(i)_$j = sums_t();
#end
#end
    for (var k = 0u; k < K; k += TK) {
        workgroupBarrier();
#for i in x_loads
        x_tile[xt$i] = vec4<u32>(x_halves(x$(i)_0, xs$i), x_halves(x$(i)_1, xs$i));
#end
#for i in w_loads
        w_tile[wt$i] = vec4<u32>(w_halves(w$(i)_0, ws$(i)_0), w_halves(w$(i)_1, ws$(i)_1));
#end
        workgroupBarrier();
        if (k + TK < K) {
#for i in x_loads
#for h in 2
            x$(i)_$h = load_x(x_start, xr$i, k + TK + xk$i * 8u + $(4 * h)u);
#end
#end
#for i in w_loads
#for h in 2
#if W_ROWS
            w$(i)_$h = load_w(w_start, wm$i + $(4 * h)u, k + TK + wk$i);
#else
            w$(i)_$h = load_w(w_start, wm$i, k + TK + wk$i + $(4 * h)u);
#end
#end
#end
        }
#for q in TK // 16
        {
#for j in own_m // 16
#if W_ROWS
            let b$j = subgroupMatrixLoad<right_t, row_major>(&w_tile, w_own + $(q * 16 * w_row + j * 2)u, $(w_row)u);
#else
            let b$j = subgroupMatrixLoad<right_t, col_major>(&w_tile, w_own + $(j * 16 * w_row + q * 2)u, $(w_row)u);
#end
#end
#for i in own_n // 16
            let a$i = subgroupMatrixLoad<left_t, row_major>(&x_tile, x_own + $(i * 16 * x_row + q * 2)u, $(x_row)u);
#for j in own_m // 16
            s$(i)_$j = subgroupMatrixMultiplyAccumulate(a$i, b$j, s$(i)_$j);
#end
#end
        }
#end
    }
    let staged = subgroup_id / $(GM)u * $(16 * stage_row)u + subgroup_id % $(GM)u * $(own_m)u;
#for i in own_n // 16
    workgroupBarrier();
#for j in own_m // 16
    subgroupMatrixStore<row_major>(&stage, staged + $(j * 16)u, s$(i)_$j, $(stage_row)u);
#end
    workgroupBarrier();
    for (var e = lane; e < $(GN * 16 * TM // 4)u; e += WORKGROUP_SIZE) {
        let line = e / $(TM // 4)u;
        let n = n_first + line / 16u * $(own_n)u + $(i * 16)u + line % 16u;
        let m = m_first + e % $(TM // 4)u * 4u;
        let source = line * $(stage_row)u + e % $(TM // 4)u * 4u;
        if (n < N && m < M) {
            var v = vec4<f32>(stage[source], stage[source + 1u], stage[source + 2u], stage[source + 3u]);
#if SCALED
            v = scaled_back(v, bitcast<u32>(x_scale(batch, n)), bitcast<vec4<u32>>(w_scale4(batch, m)));
#end
            v *= ALPHA;
            let at = (batch * N + n) * M + m;
#if Y_FOURS
#if HAS_C
#if C_FOURS
            v += BETA * c_at4(m / 4u);
#else
            v += BETA * vec4<f32>(c_at(c_index(at)), c_at(c_index(at + 1u)), c_at(c_index(at + 2u)), c_at(c_index(at + 3u)));
#end
#end
            y_set4(at / 4u, v);
#else
#for j in 4
            if (m + $(j)u < M) {
#if HAS_C
                y_set(at + $(j)u, v[$j] + BETA * c_at(c_index(at + $(j)u)));
#else
                y_set(at + $(j)u, v[$j]);
#end
            }
#end
#end
        }
    }
#end
}
