// y[n, m] = ALPHA * sum over k of x[n, k] * w[k, m] + c[m]. Rows n of x are pixels whose channels lie together (a convolution), or rows
// of a matrix; rows of w lie along m. A workgroup makes TM columns m of TN rows n. Its lanes are SLICES teams, each with its own share
// of every step's k. A step brings TQ fours of k into workgroup memory (two buffers in turn, one barrier a step), while the loads of the
// two steps after it are under way in registers. A lane owns MM x NN sums. Lanes are laid out so that those which differ in their lowest
// two bits read the same address of one operand: that halves what reading workgroup memory takes on NVIDIA.
// BATCH > 1: of so many matrices, one after another in x, w (W_ROWS each) and y; with POINTWISE only, not STRIDED, and SPLIT 1.
// SPLIT > 1: k is cut into parts of PER steps, too, each of another workgroup. LAST: the workgroup of a tile that arrives last adds the
// parts up, in their order; else y is parts[s, n, m], and sum_parts.wgsl adds.
// Of a convolution k is (tap, channel), and what is not POINTWISE has a window. TAPS: a step lies within one tap. STRIDED: one tap, steps
// over pixels. PLANES: x is stored [image, channel, y, x] with CHANNELS <= 4 of them, which count as four.
// HALVES: both tiles and the products are float16; sums of CHUNK pairs of steps are float16, too, then they are added to those in float32.
// GROUP_COUNT > 1: so many products side by side, of M4 columns each: group g has the channels from g * C4 on, and columns from g * M4 on.
// SPREAD: column m is (phase, filter), and a row's pixel makes STEP_Y x STEP_X pixels of y, one a phase, those within y's CROP_.. and
// HEIGHT_Y x WIDTH_Y are stored; 1: as vectors, FILTERS together; 2: in planes, [image, filter, y, x], by elements.
// Expects: x, w [K or more rows, M], c? [M], y as vectors; with LAST parts (vectors) and arrived (atomics, zero); ROWS M M4 C4 KQ (k in
// fours) STEPS PER SPLIT BATCH W_ROWS ALPHA LOADED (outputs at a time); TM TN TQ MM NN SLICES and what follows from them: TEAM TX TY
// A_LOADS B_LOADS A_SIZE B_ROW SHARED SUMS ROUNDS; HEIGHT.. as Window.consts writes them.
#if HALVES
alias four_t = vec4<f16>;
#if SLICES > 1
var<workgroup> sums: array<vec4<f32>, SUMS>;
#end
#else
alias four_t = vec4<f32>;
#end
var<workgroup> tile: array<four_t, SHARED>;
#if LAST
var<workgroup> place: u32;
#end

#if SPREAD
const NOWHERE: u32 = 0xffffffffu;

#include spread.wgsl
#end

#if not POINTWISE
fn pixel_or_zero(step: u32, kq: u32, top: i32, left: i32, base: i32) -> vec4<f32> {
#include tile_tap.wgsl
    if (!(within && u32(top + dy) < HEIGHT && u32(left + dx) < WIDTH)) { return vec4<f32>(); }
#if PLANES
    let at = u32(base + dy * i32(WIDTH) + dx);
    var v = vec4<f32>(x_at(at), 0.0, 0.0, 0.0);
#for channel in CHANNELS - 1
    v[$(channel + 1)] = x_at(at + $(channel + 1)u * HEIGHT * WIDTH);
#end
    return v;
#else
    return x_at4(u32(base + (dy * i32(WIDTH) + dx) * $(GROUP_COUNT * C4) + i32(channel)));
#end
}
#end

#if SLICES > 1
// Of a team's sums: in an array of their own beside a tile of float16, else where the tile was.
#if HALVES
fn sum_at(i: u32) -> vec4<f32> { return sums[i]; }
fn set_sum(i: u32, v: vec4<f32>) { sums[i] = v; }
#else
fn sum_at(i: u32) -> vec4<f32> { return tile[i]; }
fn set_sum(i: u32, v: vec4<f32>) { tile[i] = v; }
#end
#end

fn grid_main(group: vec3<u32>, lane: u32) {
#if GROUP_COUNT > 1
    let m_base = group.x / $((M4 * 4 + TM - 1) // TM)u * M4;
    let m_first = group.x % $((M4 * 4 + TM - 1) // TM)u * $(TM // 4)u;
    let c_base = m_base / M4 * C4;
#else
    let m_base = 0u;
    let m_first = group.x * $(TM // 4)u;
    let c_base = 0u;
#end
    let n_first = group.y * TN;
#if BATCH > 1
    let part = 0u;
    let batch = group.z;
#else
    let part = group.z;
    let batch = 0u;
#end
    let first = part * PER;
    let end = min(first + PER, STEPS);
#include tile_lanes.wgsl
#for i in A_LOADS
    let a_to$i = lane + $(i * WORKGROUP_SIZE)u;
    let k$i = batch * W_ROWS + first * $(TQ * 4)u + a_to$i / $(TM // 4)u;
    var a_from$i = k$i * $(GROUP_COUNT * M4)u + m_base + min(m_first + a_to$i % $(TM // 4)u, M4 - 1u);
#end
    let kq = lane % TQ;
#for i in B_LOADS
    let row$i = (lane + $(i * WORKGROUP_SIZE)u) / TQ;
    let b_to$i = A_SIZE + kq * B_ROW + row$i;
    let n$i = min(n_first + row$i, ROWS - 1u);
#if POINTWISE and not STRIDED
    var b_from$i = (batch * ROWS + n$i) * $(GROUP_COUNT * C4)u + c_base + first * TQ + kq;
#else
    let image$i = n$i / (OUT_HEIGHT * OUT_WIDTH);
    let pixel$i = n$i - image$i * (OUT_HEIGHT * OUT_WIDTH);
    let oy$i = pixel$i / OUT_WIDTH;
    let ox$i = pixel$i - oy$i * OUT_WIDTH;
#if POINTWISE
    var b_from$i = ((image$i * HEIGHT + oy$i * STRIDE_Y) * WIDTH + ox$i * STRIDE_X) * $(GROUP_COUNT * C4)u + c_base + first * TQ + kq;
#else
    let top$i = i32(oy$i * STRIDE_Y) - i32(PAD_Y);
    let left$i = i32(ox$i * STRIDE_X) - i32(PAD_X);
#if PLANES
    let base$i = (i32(image$i * CHANNELS * HEIGHT) + top$i) * i32(WIDTH) + left$i;
#else
    let base$i = ((i32(image$i * HEIGHT) + top$i) * i32(WIDTH) + left$i) * $(GROUP_COUNT * C4) + i32(c_base);
#end
#end
#end
#end
#for z in 2
#for i in A_LOADS
    var a$(z)_$i = w_four_t();
#end
#for i in B_LOADS
    var b$(z)_$i = vec4<f32>();
#end
    if (first + $(z)u < end) {
#for i in A_LOADS
        a$(z)_$i = w_four(a_from$i);
        a_from$i += $(TQ * 4 * GROUP_COUNT * M4)u;
#end
#for i in B_LOADS
#if POINTWISE
#if KQ % TQ == 0
        b$(z)_$i = x_at4(b_from$i);
#else
        if ((first + $(z)u) * TQ + kq < KQ) { b$(z)_$i = x_at4(b_from$i); }
#end
        b_from$i += TQ;
#else
        b$(z)_$i = pixel_or_zero(first + $(z)u, kq, top$i, left$i, base$i);
#end
#end
    }
#end
#if HALVES
#for i in MM // 4
#for j in NN
    var f$(i)_$j = vec4<f32>();
    var h$(i)_$j = four_t();
#end
#end
#else
#for i in MM
#for j in NN
    var s$(i)_$j = 0.0;
#end
#end
#end
    for (var step = first; step < end; step += 2u) {
#for z in 2
#if z == 1
        if (step + 1u >= end) { break; }
#end
#for i in A_LOADS
        tile[$(z)u * BUFFER + a_to$i] = four_t(w_of_four(a$(z)_$i));
#end
#for i in B_LOADS
        tile[$(z)u * BUFFER + b_to$i] = four_t(b$(z)_$i);
#end
        workgroupBarrier();
        if (step + $(z + 2)u < end) {
#for i in A_LOADS
            a$(z)_$i = w_four(a_from$i);
            a_from$i += $(TQ * 4 * GROUP_COUNT * M4)u;
#end
#for i in B_LOADS
#if POINTWISE
#if KQ % TQ == 0
            b$(z)_$i = x_at4(b_from$i);
#else
            b$(z)_$i = vec4<f32>();
            if ((step + $(z + 2)u) * TQ + kq < KQ) { b$(z)_$i = x_at4(b_from$i); }
#end
            b_from$i += TQ;
#else
            b$(z)_$i = pixel_or_zero(step + $(z + 2)u, kq, top$i, left$i, base$i);
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
#if HALVES
#for i in MM // 4
#for j in NN
            h$(i)_$j = fma(a$(q)_$(k)_$i, four_t(b$(q)_$j[$k]), h$(i)_$j);
#end
#end
#else
#for i in MM
#for l in NN
#let j = l if i % 2 == 0 else NN - 1 - l
            s$(i)_$j = fma(a$(q)_$(k)_$(i // 4)[$(i % 4)], b$(q)_$j[$k], s$(i)_$j);
#end
#end
#end
#end
#end
        }
#end
#if HALVES
        if ((step - first) % $(2 * CHUNK)u == $(2 * CHUNK - 2)u) {
#for i in MM // 4
#for j in NN
            f$(i)_$j += vec4<f32>(h$(i)_$j);
            h$(i)_$j = four_t();
#end
#end
        }
#end
    }
#if HALVES
#for i in MM
#for j in NN
    let s$(i)_$j = f$(i // 4)_$j[$(i % 4)] + f32(h$(i // 4)_$j[$(i % 4)]);
#end
#end
#end
#if SLICES == 1
#for e in OUTPUTS
#let i = e // NN * 4
#let j = e % NN
    var r$e = vec4<f32>(s$(i)_$j, s$(i + 1)_$j, s$(i + 2)_$j, s$(i + 3)_$j);
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
    set_sum(team * $(EACH * TEAM)u + $(e * TEAM)u + t, vec4<f32>(s$(i)_$j, s$(i + 1)_$j, s$(i + 2)_$j, s$(i + 3)_$j));
#end
    workgroupBarrier();
#for f in EACH // SLICES
#let g = round * (EACH // SLICES) + f
    let e$g = team + $(f * SLICES)u;
    var r$g = sum_at(e$g * TEAM + t);
#for s in SLICES - 1
    r$g += sum_at($((s + 1) * EACH * TEAM)u + e$g * TEAM + t);
#end
    let m$g = m_first + ty + (e$g + $(round * EACH)u) / NN * TY;
    let o$g = n_first + tx + (e$g + $(round * EACH)u) % NN * TX;
#end
#end
#end
#if LAST
    let counter = group.y * $((M4 * 4 + TM - 1) // TM * GROUP_COUNT)u + group.x;
    let own = counter * $(SPLIT * OUTPUTS * WORKGROUP_SIZE)u + lane;
#for e in OUTPUTS
    parts[own + (part * OUTPUTS + $(e)u) * WORKGROUP_SIZE] = r$e;
#end
#include last_arriving.wgsl
#for e in OUTPUTS
    r$e = vec4<f32>();
#end
#let once = AT_ONCE if AT_ONCE < SPLIT else SPLIT
#let whole = SPLIT // once
    for (var s = 0u; s < $(whole * once)u; s += $(once)u) {
#for p in once
#for e in OUTPUTS
        let p$(p)_$e = parts[own + ((s + $(p)u) * OUTPUTS + $(e)u) * WORKGROUP_SIZE];
#end
#end
#for p in once
#for e in OUTPUTS
        r$e += p$(p)_$e;
#end
#end
    }
#for p in SPLIT - whole * once
#for e in OUTPUTS
    r$e += parts[own + ($(whole * once + p)u * OUTPUTS + $(e)u) * WORKGROUP_SIZE];
#end
#end
#end
#if SPLIT > 1 and not LAST
#for e in OUTPUTS
    if (m$e < M4 && o$e < ROWS) { y_set4((part * ROWS + o$e) * $(GROUP_COUNT * M4)u + m_base + m$e, r$e); }
#end
#else
#if SPREAD == 2
#for e in OUTPUTS
    if (m$e < M4 && o$e < ROWS) {
#for j in 4
        {
            let at = spread(o$e, m$e * 4u + $(j)u);
            var v = ALPHA * r$e[$j];
#if HAS_C
            v += c_at((m$e * 4u + $(j)u) % FILTERS);
#end
            if (at != NOWHERE) { y_set(at, v); }
        }
#end
    }
#end
#else
    // what the fused steps read is under way for several outputs at a time: a store in between would keep the next load waiting
#let together = LOADED if LOADED < OUTPUTS else OUTPUTS
#for round in OUTPUTS // together
#for f in together
#let e = round * together + f
    let c$e = m_base + min(m$e, M4 - 1u);
#if SPREAD
    let s$e = spread(min(o$e, ROWS - 1u), c$e);
    let i$e = select(s$e, 0u, s$e == NOWHERE);
#else
    let i$e = (batch * ROWS + min(o$e, ROWS - 1u)) * $(GROUP_COUNT * M4)u + c$e;
#end
    var v$e = ALPHA * r$e;
#if HAS_C
#if SPREAD
    v$e += c_at4(c$e % FILTERS);
#else
    v$e += c_at4(c$e);
#end
#end
    let y$e = y_final4(i$e, v$e);
#end
#for f in together
#let e = round * together + f
#if SPREAD
    if (m$e < M4 && o$e < ROWS && s$e != NOWHERE) { y_store4(i$e, y$e); }
#else
    if (m$e < M4 && o$e < ROWS) { y_store4(i$e, y$e); }
#end
#end
#end
#end
#end
}
