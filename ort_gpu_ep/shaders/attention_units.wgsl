// y = softmax(SCALE q k^T + mask) v of each head on matrix units (chromium_experimental_subgroup_matrix), in one pass over the keys as
// attention.wgsl (online softmax): both products have float16 operands and float32 sums, in fragments of FN rows of FM columns and FK products. A workgroup has a query for LANES invocations (2; or
// 4, for heads of more elements than the registers of two hold); a step brings BK keys and their values into workgroup memory, in turn: all that
// a step needs goes through the same part of it, so that a compute unit has room for several workgroups. LANES neighbouring invocations have a
// query's scores, powers and sums of values in registers, four elements of each 4 LANES (`half` says which).
// Grid: blocks of queries, heads, batches.
// SUBGROUP: invocations of a subgroup, which has a query for each LANES; where that is less than a fragment's rows, several share them, and each
// has its part of the keys, then of the values.
// SCALED: q, k and v are multiplied by a power of two for each block on the way in (scale_of.wgsl), so that float16 holds what float32 does.
// Q_EIGHTS, K_EIGHTS, V_EIGHTS: it has 16 bits and is bound by eight.
// Expects: q, k, v, mask?, y (all but mask as vectors of four elements); SQ, SK (queries, keys), D, DV (elements of a head's queries and values,
// multiples of 4: in workgroup memory zeros fill D up to a multiple of 8 LANES, and DV to one of CHUNK), CHUNK (elements of a value that go through
// workgroup memory at a time), FN FM FK where they are not 16, and GROUP, offsets, masks and all else as attention.wgsl has it.
// Source: ONNX Attention; Dao et al., FlashAttention, arXiv:2205.14135.
#include fragments.wgsl
#default LANES = 2
#let across = 4 * LANES
#let QB = WORKGROUP_SIZE // LANES
#let padded = (D + 2 * across - 1) // (2 * across) * (2 * across)
#let k_row = padded // 8 + 1
#let s_row = BK // 4 + 2
#let p_row = BK // 8 + 1
#let v_row = CHUNK // 8 + 1
#let o_row = CHUNK // 4 + 2
#let q_loads = QB * padded // 8 // WORKGROUP_SIZE
#let k_loads = BK * padded // 8 // WORKGROUP_SIZE
#let v_loads = BK * CHUNK // 8 // WORKGROUP_SIZE
#let v_first = QB * p_row
#let chunks = (DV + CHUNK - 1) // CHUNK
#default SUBGROUP = 32
#let sharing = LANES * FN // SUBGROUP if LANES * FN > SUBGROUP else 1
#let own_rows = SUBGROUP * sharing // LANES
#let lines = own_rows // FN
#let key_parts = BK // FM // sharing
#let value_parts = CHUNK // FM // sharing
var<workgroup> tile: array<vec4<u32>, ROOM>;
#if SCALED
#include scale_of.wgsl
var<workgroup> largest: array<atomic<u32>, 3>;      // of the block's q, k and v: bits of a magnitude

fn magnitude(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    let finite = select(vec4<u32>(), bits, bits < vec4<u32>(0x7f800000u));
    return max(max(finite.x, finite.y), max(finite.z, finite.w));
}

// Of what a subgroup has, by one of its lanes: atomics at one place follow each other.
fn note_largest(which: u32, own: u32, its_lane: u32) {
    let most = subgroupMax(own);
    if (its_lane == 0u) { atomicMax(&largest[which], most); }
}

// 2^-e, in two factors: one alone could be beyond float32.
fn back(e: i32) -> vec2<f32> {
    let some = e / 2;
    return bitcast<vec2<f32>>(vec2<u32>(u32(127 - some) << 23u, u32(127 - (e - some)) << 23u));
}

fn exponent(scale: f32) -> i32 { return i32(bitcast<u32>(scale) >> 23u) - 127; }
#end

#include attention_scores.wgsl

fn halves(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}

fn grid_main(group: vec3<u32>, lane: u32) {
    let b = group.z;
    let h = group.y;
    let first = group.x * $(QB)u;
    let row = lane / $(LANES)u;
    let half = lane % $(LANES)u;
    let i = first + row;
#if sharing > 1
    let its_rows = subgroup_id / $(sharing)u;
    let its_part = subgroup_id % $(sharing)u;
    let its_keys = its_part * $(key_parts * FM * k_row)u;
    let its_scores = its_part * $(key_parts * FM // 4)u;
    let its_values = its_part * $(value_parts * FM // 8)u;
    let its_sums = its_part * $(value_parts * FM // 4)u;
#end
#if LENGTHS
    let before = tokens_before(b);
#else
    let before = BEFORE;
#end
#if CAUSAL
    let end = min(SK, min(first + $(QB)u, SQ) + before);
#else
#if LENGTHS
    let end = min(SK, u32(max(lengths_at(b), 0)) + 1u);
#else
    let end = SK;
#end
#end
#if WINDOW
    let start = max(first + before + 1u, WINDOW) - WINDOW;     // what the first query of the workgroup sees
#else
    let start = 0u;
#end
    let q_base = b * Q_B + h * Q_H + Q_FIRST;
    let k_base = b * K_B + h / GROUP * K_H + K_FIRST;
    let v_base = b * V_B + h / GROUP * V_H + V_FIRST;
#for u in k_loads
    let ke$u = lane + $(u * WORKGROUP_SIZE)u;
    let kn$u = ke$u / $(padded // 8)u;
    let kt$u = kn$u * $(k_row)u + ke$u % $(padded // 8)u;
    let kp$u = k_base + ke$u % $(padded // 8)u * 2u;
#if D != padded
    let kd$u = ke$u % $(padded // 8)u * 8u;
#end
#if K_EIGHTS
    var kw$u = vec4<u32>();
#else
    var ka$u = vec4<f32>();
    var kb$u = vec4<f32>();
#end
#end
    {
        let next = start;
#include attention_keys.wgsl
    }
#if SCALED
    if (lane < 3u) { atomicStore(&largest[lane], 0u); }
    workgroupBarrier();
#end
#for u in q_loads
    let qe$u = lane + $(u * WORKGROUP_SIZE)u;
    let qp$u = q_base + min(first + qe$u / $(padded // 8)u, SQ - 1u) * Q_S + qe$u % $(padded // 8)u * 2u;
#if D != padded
    let qd$u = qe$u % $(padded // 8)u * 8u;
#if Q_EIGHTS
    var qw$u = vec4<u32>();
    if (qd$u < D) { qw$u = q_eight(qp$u / 2u); }
#else
    var qa$u = vec4<f32>();
    var qb$u = vec4<f32>();
    if (qd$u < D) { qa$u = q_at4(qp$u); }
    if (qd$u + 4u < D) { qb$u = q_at4(qp$u + 1u); }
#end
#else
#if not Q_EIGHTS
    var qa$u = q_at4(qp$u);
    var qb$u = q_at4(qp$u + 1u);
#end
#end
#end
#if SCALED
    var most = 0u;
#for u in q_loads
    most = max(most, max(magnitude(qa$u), magnitude(qb$u)));
#end
    note_largest(0u, most, subgroup_lane);
    workgroupBarrier();
    let q_scale = scale_of(atomicLoad(&largest[0]), 0);
#end
#for u in q_loads
#if SCALED
    qa$u *= q_scale;
    qb$u *= q_scale;
#end
#if Q_EIGHTS
#if D != padded
    tile[qe$u / $(padded // 8)u * $(k_row)u + qe$u % $(padded // 8)u] = qw$u;
#else
    tile[qe$u / $(padded // 8)u * $(k_row)u + qe$u % $(padded // 8)u] = q_eight(qp$u / 2u);
#end
#else
    tile[qe$u / $(padded // 8)u * $(k_row)u + qe$u % $(padded // 8)u] = halves(qa$u, qb$u);
#end
#end
    workgroupBarrier();
#for l in lines
#for d in padded // FK
#if sharing == 1
    let a$(l * padded // FK + d) = subgroupMatrixLoad<left_t, row_major>(&tile, subgroup_id * $(own_rows * k_row)u + $(l * FN * k_row + d * FK // 8)u, $(k_row)u);
#else
    let a$(l * padded // FK + d) = subgroupMatrixLoad<left_t, row_major>(&tile, its_rows * $(own_rows * k_row)u + $(l * FN * k_row + d * FK // 8)u, $(k_row)u);
#end
#end
#end
#for u in v_loads
    let ve$u = lane + $(u * WORKGROUP_SIZE)u;
    let vn$u = ve$u / $(CHUNK // 8)u;
    let vt$u = $(v_first)u + vn$u * $(v_row)u + ve$u % $(CHUNK // 8)u;
    let vp$u = v_base + ve$u % $(CHUNK // 8)u * 2u;
#if DV % CHUNK
    let vd$u = ve$u % $(CHUNK // 8)u * 8u;
#end
#if V_EIGHTS
    var vw$u = vec4<u32>();
#else
    var va$u = vec4<f32>();
    var vb$u = vec4<f32>();
#end
#end
#for c in chunks
#for g in CHUNK // across
    var o$(c)_$g = vec4<f32>();
#end
#end
#if SINK
#if SINK == 1
    var top = sink_at(h);
#else
    var top = 0.0;
#end
    var total = select(0.0, 1.0, half == 0u);
#else
    var top = LOWEST;
    var total = 0.0;
#end
    for (var from_key = start; from_key < end; from_key += BK) {
#if SCALED
        most = 0u;
#for u in k_loads
        most = max(most, max(magnitude(ka$u), magnitude(kb$u)));
#end
        note_largest(1u, most, subgroup_lane);
#end
        workgroupBarrier();
#if SCALED
        let k_scale = scale_of(atomicLoad(&largest[1]), 0);
        let scores_back = back(exponent(q_scale) + exponent(k_scale));
#for u in k_loads
        ka$u *= k_scale;
        kb$u *= k_scale;
#end
#end
#for u in k_loads
#if K_EIGHTS
        tile[kt$u] = kw$u;
#else
        tile[kt$u] = halves(ka$u, kb$u);
#end
#end
#let loaded = 0
#include attention_values.wgsl
        workgroupBarrier();
#if SCALED
        if (lane == 0u) { atomicStore(&largest[1], 0u); }
#end
#for n in lines * key_parts
        var s$n = sums_t();
#end
#for d in padded // FK
        {
#for n in key_parts
#if sharing == 1
            let b$n = subgroupMatrixLoad<right_t, col_major>(&tile, $(n * FM * k_row + d * FK // 8)u, $(k_row)u);
#else
            let b$n = subgroupMatrixLoad<right_t, col_major>(&tile, its_keys + $(n * FM * k_row + d * FK // 8)u, $(k_row)u);
#end
#end
#for l in lines
#for n in key_parts
            s$(l * key_parts + n) = subgroupMatrixMultiplyAccumulate(a$(l * padded // FK + d), b$n, s$(l * key_parts + n));
#end
#end
        }
#end
        workgroupBarrier();
#for l in lines
#for n in key_parts
#if sharing == 1
        subgroupMatrixStore<row_major>(&tile, subgroup_id * $(own_rows * s_row)u + $(l * FN * s_row + n * FM // 4)u, s$(l * key_parts + n), $(s_row)u);
#else
        subgroupMatrixStore<row_major>(&tile, its_rows * $(own_rows * s_row)u + its_scores + $(l * FN * s_row + n * FM // 4)u, s$(l * key_parts + n), $(s_row)u);
#end
#end
#end
        let next = from_key + BK;
#include attention_keys.wgsl
        workgroupBarrier();
        var new_top = top;
#for g in BK // across
        let j$g = from_key + half * 4u + $(across * g)u;
        var p$g = bitcast<vec4<f32>>(tile[row * $(s_row)u + half + $(LANES * g)u]);
#if SCALED
        p$g = p$g * scores_back.x * scores_back.y;
#end
        p$g *= SCALE;
#for e in 4
        p$g[$e] = scored(p$g[$e], b, h, i, j$g + $(e)u);
        let sees$(g)_$e = sees(b, h, i, j$g + $(e)u, before);
        new_top = max(new_top, select(LOWEST, p$g[$e], sees$(g)_$e));
#end
#end
        new_top = max(new_top, quadSwapX(new_top));
#if LANES == 4
        new_top = max(new_top, quadSwapY(new_top));
#end
        let fade = power(top - new_top);
        top = new_top;
        total *= fade;
#for g in BK // across
#for e in 4
        p$g[$e] = select(0.0, power(p$g[$e] - top), sees$(g)_$e);
        total += p$g[$e];
#end
#end
#for c in chunks
#for g in CHUNK // across
        o$(c)_$g *= fade;
#end
#end
#for c in chunks
#if SCALED
        most = 0u;
#for u in v_loads
        most = max(most, max(magnitude(va$u), magnitude(vb$u)));
#end
        note_largest(2u, most, subgroup_lane);
#end
        workgroupBarrier();
#if c == 0
        // a vector of eight has four of each of two invocations: of two vectors each stores one, and gives its part of the other
#for t in BK // across // 2
#let g = 2 * t
        let even$t = vec2<u32>(pack2x16float(p$g.xy), pack2x16float(p$g.zw));
        let odd$t = vec2<u32>(pack2x16float(p$(g + 1).xy), pack2x16float(p$(g + 1).zw));
#if LANES == 4
        let second = half % 2u == 1u;
        let own$t = select(even$t, odd$t, second);
        let given$t = quadSwapX(select(odd$t, even$t, second));
        tile[row * $(p_row)u + $(2 * g)u + half % 2u * 2u + half / 2u] = select(vec4<u32>(own$t, given$t), vec4<u32>(given$t, own$t), second);
#else
        let own$t = select(even$t, odd$t, half == 1u);
        let given$t = quadSwapX(select(odd$t, even$t, half == 1u));
        tile[row * $(p_row)u + $(g)u + half] = select(vec4<u32>(own$t, given$t), vec4<u32>(given$t, own$t), half == 1u);
#end
#end
#end
#if SCALED
        let v_scale$c = scale_of(atomicLoad(&largest[2]), 0);
        let v_back$c = back(exponent(v_scale$c));
#for u in v_loads
        va$u *= v_scale$c;
        vb$u *= v_scale$c;
#end
#end
#for u in v_loads
#if V_EIGHTS
        tile[vt$u] = vw$u;
#else
        tile[vt$u] = halves(va$u, vb$u);
#end
#end
        workgroupBarrier();
#if SCALED
        if (lane == 0u) { atomicStore(&largest[2], 0u); }
#end
#if c == 0
#for l in lines
#for n in BK // FK
#if sharing == 1
        let w$(l * BK // FK + n) = subgroupMatrixLoad<left_t, row_major>(&tile, subgroup_id * $(own_rows * p_row)u + $(l * FN * p_row + n * FK // 8)u, $(p_row)u);
#else
        let w$(l * BK // FK + n) = subgroupMatrixLoad<left_t, row_major>(&tile, its_rows * $(own_rows * p_row)u + $(l * FN * p_row + n * FK // 8)u, $(p_row)u);
#end
#end
#end
#end
#for m in lines * value_parts
        var r$(c)_$m = sums_t();
#end
#for n in BK // FK
        {
#for m in value_parts
#if sharing == 1
            let b$m = subgroupMatrixLoad<right_t, row_major>(&tile, $(v_first + n * FK * v_row + m * FM // 8)u, $(v_row)u);
#else
            let b$m = subgroupMatrixLoad<right_t, row_major>(&tile, its_values + $(v_first + n * FK * v_row + m * FM // 8)u, $(v_row)u);
#end
#end
#for l in lines
#for m in value_parts
            r$(c)_$(l * value_parts + m) = subgroupMatrixMultiplyAccumulate(w$(l * BK // FK + n), b$m, r$(c)_$(l * value_parts + m));
#end
#end
        }
#end
        workgroupBarrier();
#for l in lines
#for m in value_parts
#if sharing == 1
        subgroupMatrixStore<row_major>(&tile, subgroup_id * $(own_rows * o_row)u + $(l * FN * o_row + m * FM // 4)u, r$(c)_$(l * value_parts + m), $(o_row)u);
#else
        subgroupMatrixStore<row_major>(&tile, its_rows * $(own_rows * o_row)u + its_sums + $(l * FN * o_row + m * FM // 4)u, r$(c)_$(l * value_parts + m), $(o_row)u);
#end
#end
#end
#if c + 1 < chunks
#let loaded = c + 1
#include attention_values.wgsl
#end
        workgroupBarrier();
#for g in CHUNK // across
#if SCALED
        o$(c)_$g += bitcast<vec4<f32>>(tile[row * $(o_row)u + half + $(LANES * g)u]) * v_back$c.x * v_back$c.y;
#else
        o$(c)_$g += bitcast<vec4<f32>>(tile[row * $(o_row)u + half + $(LANES * g)u]);
#end
#end
#end
    }
    total += quadSwapX(total);
#if LANES == 4
    total += quadSwapY(total);
#end
#if EMPTY_IS_ZERO
    let share = select(1.0 / total, 0.0, total == 0.0);
#else
    let share = 1.0 / total;
#end
    if (i < SQ) {
        let y_at = b * Y_B + h * Y_H + i * Y_S + half;
#for c in chunks
#for g in CHUNK // across
#let at = c * CHUNK + across * g
#if at + across > DV
        if ($(at)u + half * 4u < DV) {
#end
#if EMPTY_IS_ZERO == 2
        y_set4(y_at + $((c * CHUNK // across + g) * LANES)u, select(o$(c)_$g * share, vec4<f32>(0.0), is_nan_f32(total)));
#else
        y_set4(y_at + $((c * CHUNK // across + g) * LANES)u, o$(c)_$g * share);
#end
#if at + across > DV
        }
#end
#end
#end
    }
}
