// byte_product.wgsl on matrix units (chromium_experimental_subgroup_matrix): fragments of FN x FM sums of FK products, exact. Tiles, shares and
// the way of the sums are those of matrix_product.wgsl; a step brings TK bytes of k, TQ quads, of TN rows and of TM columns.
// Expects: x (vectors where WIDE), w [M, W_ROW quads] as vectors, numbers as vectors, a_zp?, y [ROWS, M]; M4 ROWS STEPS W_ROW; TM TN TQ GM GN;
// what is not said here as byte_product.wgsl has it.
#if REQUANTIZED
#include requantized.wgsl
#end
// Fragments of 8 products begin at half a vector: the tile is then one of vectors of eight bytes.
#default FN = 16
#default FM = 16
#default FK = 32
alias left_t = subgroup_matrix_left<i8, $FK, $FN>;
alias right_t = subgroup_matrix_right<i8, $FM, $FK>;
alias sums_t = subgroup_matrix_result<i32, $FM, $FN>;
#let parts = 2 if FK == 8 else 1
#let part = 16 // parts
#let row = TQ + 1
#let x_loads = TN * TQ // WORKGROUP_SIZE
#let w_loads = TM * TQ // WORKGROUP_SIZE
#let own_n = TN // GN
#let own_m = TM // GM
#let both = (TN + TM) * row
#let stage_row = TM // 4 + 2
#let staged = GN * FN * stage_row
#let stores = GN * FN * TM // 4 // WORKGROUP_SIZE
#if parts == 1
var<workgroup> tile: array<vec4<u32>, $(both if both > staged else staged)>;
#else
var<workgroup> tile: array<vec2<u32>, $(2 * both if both > staged else 2 * staged)>;
fn store_quad(at: u32, v: vec4<u32>) {
    tile[2u * at] = v.xy;
    tile[2u * at + 1u] = v.zw;
}
#end

#include byte_loads.wgsl

fn grid_main(group: vec3<u32>, lane: u32) {
    let m_first = group.x * TM;
    let n_first = group.y * TN;
    let kq = lane % TQ;
#if REQUANTIZED
    let last = numbers_word4(2u * M4);
#end
#for i in w_loads
    let wr$i = (lane + $(i * WORKGROUP_SIZE)u) / TQ;
    let wp$i = min(m_first + wr$i, M4 * 4u - 1u) * W_ROW + kq;
    var w$i = vec4<u32>();
#end
#for i in x_loads
    let xr$i = (lane + $(i * WORKGROUP_SIZE)u) / TQ;
    let n$i = min(n_first + xr$i, ROWS - 1u);
    var x$i = vec4<u32>();
#if POINTWISE and not STRIDED
    let xp$i = n$i;
#else
    let image$i = n$i / (OUT_HEIGHT * OUT_WIDTH);
    let pixel$i = n$i - image$i * (OUT_HEIGHT * OUT_WIDTH);
    let oy$i = pixel$i / OUT_WIDTH;
    let ox$i = pixel$i - oy$i * OUT_WIDTH;
#if POINTWISE
    let xp$i = (image$i * HEIGHT + oy$i * STRIDE_Y) * WIDTH + ox$i * STRIDE_X;
#else
    let top$i = i32(oy$i * STRIDE_Y) - i32(PAD_Y);
    let left$i = i32(ox$i * STRIDE_X) - i32(PAD_X);
    let base$i = (i32(image$i * $(CHANNELS if PLANES else 1)u * HEIGHT) + top$i) * i32(WIDTH) + left$i;
#end
#end
#end
    {
        let next = 0u;
#include byte_unit_loads.wgsl
    }
    let x_own = subgroup_id / $(GM)u * $(own_n * row * parts)u;
    let w_own = $(TN * row * parts)u + subgroup_id % $(GM)u * $(own_m * row * parts)u;
#for i in own_n // FN
#for j in own_m // FM
    var s$(i)_$j = sums_t();
#end
#end
    for (var step = 0u; step < STEPS; step++) {
        workgroupBarrier();
#for i in x_loads
#if parts == 1
        tile[xr$i * $(row)u + kq] = x$i;
#else
        store_quad(xr$i * $(row)u + kq, x$i);
#end
#end
#for i in w_loads
#if parts == 1
        tile[$(TN * row)u + wr$i * $(row)u + kq] = w$i;
#else
        store_quad($(TN * row)u + wr$i * $(row)u + kq, w$i);
#end
#end
        workgroupBarrier();
        if (step + 1u < STEPS) {
            let next = step + 1u;
#include byte_unit_loads.wgsl
        }
#for q in TQ * 16 // FK
        {
#for j in own_m // FM
            let b$j = subgroupMatrixLoad<right_t, col_major>(&tile, w_own + $(j * FM * row * parts + q * FK // part)u, $(row * parts)u);
#end
#for i in own_n // FN
            let a$i = subgroupMatrixLoad<left_t, row_major>(&tile, x_own + $(i * FN * row * parts + q * FK // part)u, $(row * parts)u);
#for j in own_m // FM
            s$(i)_$j = subgroupMatrixMultiplyAccumulate(a$i, b$j, s$(i)_$j);
#end
#end
        }
#end
    }
    let own_stage = subgroup_id / $(GM)u * $(FN * stage_row * parts)u + subgroup_id % $(GM)u * $(own_m * parts // 4)u;
#if REQUANTIZED
    let zero = bitcast<f32>(last.x);
#else
    let zero = i32(a_zp_at(0u)) - i32(X_SHIFT);
#end
#for i in own_n // FN
#include staged_sums.wgsl
#for u in stores
    let line$(i)_$u = (lane + $(u * WORKGROUP_SIZE)u) / $(TM // 4)u;
    let o$(i)_$u = n_first + line$(i)_$u / $(FN)u * $(own_n)u + $(i * FN)u + line$(i)_$u % $(FN)u;
    let m$(i)_$u = m_first / 4u + (lane + $(u * WORKGROUP_SIZE)u) % $(TM // 4)u;
#if parts == 1
    let r$(i)_$u = bitcast<vec4<i32>>(tile[line$(i)_$u * $(stage_row)u + m$(i)_$u - m_first / 4u]);
#else
    let t$(i)_$u = 2u * (line$(i)_$u * $(stage_row)u + m$(i)_$u - m_first / 4u);
    let r$(i)_$u = bitcast<vec4<i32>>(vec4<u32>(tile[t$(i)_$u], tile[t$(i)_$u + 1u]));
#end
    if (o$(i)_$u < ROWS && m$(i)_$u < M4) {
#if REQUANTIZED
        let sum = r$(i)_$u + bitcast<vec4<i32>>(numbers_word4(m$(i)_$u));
        let scale = bitcast<vec4<f32>>(numbers_word4(M4 + m$(i)_$u));
        y_set_word(o$(i)_$u * M4 + m$(i)_$u, requantized(sum, scale, zero));
#else
        let at = (o$(i)_$u * M4 + m$(i)_$u) * 4u;
        let v = r$(i)_$u - zero * bitcast<vec4<i32>>(numbers_word4(m$(i)_$u));
#for c in 4
        y_set(at + $(c)u, v[$c]);
#end
#end
    }
#end
#end
}
