// y = softmax(SCALE q k^T + mask) v of each head, in one pass over the keys as attention.wgsl (online softmax), both products in register
// tiles. A workgroup has BQ queries, which stay in workgroup memory; a step brings BK keys there, and then their values to the same place.
// A lane has RQ x RK scores of a step, of neighbouring keys by fours, and of the same queries the sums of values; the scores go through workgroup
// memory, where each row becomes powers by BQ lanes at a time, so that no exponential is calculated twice. What a step brings is under way in
// registers while the product before it is calculated. A column of keys in workgroup memory is key (column % (BK / 4)) * 4 + column / (BK / 4), so that
// lanes beside each other read columns beside each other.
// Grid: blocks of queries, heads, batches.
// Expects: what attention.wgsl does but PARTS, QL, SLICES, CHUNK and CODES; DQ, DV: vectors of a head's elements; TEAM (all lanes) TX TY
// (lanes beside each other over keys, and over queries).
// Source: ONNX Attention; Dao et al., FlashAttention, arXiv:2205.14135.
#let q_row = BQ + 1
#let k_row = BK + 1
#let k_nbytes = DQ * k_row
#let room = k_nbytes if k_nbytes > BK * DV else BK * DV
#let k_loads = (BK * DQ + TEAM - 1) // TEAM
#let v_loads = (BK * DV + TEAM - 1) // TEAM
#let own_values = (DV + TX - 1) // TX
#let sharing = TEAM // BQ
var<workgroup> queries: array<vec4<f32>, $(DQ * q_row)>;
var<workgroup> brought: array<vec4<f32>, $room>;        // keys, then values
var<workgroup> scores: array<vec4<f32>, $(BK // 4 * q_row)>;
var<workgroup> tops: array<f32, $(TX * BQ)>;            // of a lane's scores of a row; at the end sums of powers
var<workgroup> fades: array<f32, BQ>;

#include attention_scores.wgsl

fn powers(x: vec4<f32>) -> vec4<f32> { return exp2(x * 1.44269504); }

fn grid_main(group: vec3<u32>, lane: u32) {
    let b = group.z;
    let h = group.y;
    let first = group.x * BQ;
#include tile_lanes.wgsl
#if LENGTHS
    let before = tokens_before(b);
#else
    let before = BEFORE;
#end
#if CAUSAL
    let end = min(SK, min(first + BQ, SQ) + before);
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
    let k_base = b * K_B + h / GROUP * K_H + K_FIRST;
    let v_base = b * V_B + h / GROUP * V_H + V_FIRST;
    for (var e = lane; e < BQ * DQ; e += WORKGROUP_SIZE) {
        let from_query = b * Q_B + h * Q_H + min(first + e / DQ, SQ - 1u) * Q_S + Q_FIRST;
        queries[e % DQ * $(q_row)u + e / DQ] = q_at4(from_query + e % DQ) * SCALE;
    }
#for l in k_loads
    let k_key$l = min((lane + $(l * TEAM)u) / DQ, BK - 1u);
    let k_d$l = (lane + $(l * TEAM)u) % DQ;
    var k_next$l = k_at4(k_base + min(start + k_key$l, end - 1u) * K_S + k_d$l);    // what no query sees may be no number, and no weight of 0 makes it one
#end
#for l in v_loads
    let v_key$l = min((lane + $(l * TEAM)u) / DV, BK - 1u);
    let v_d$l = (lane + $(l * TEAM)u) % DV;
#end
    let row = lane % BQ;
    let row_part = lane / BQ;
#if SINK
#if SINK == 1
    var top = sink_at(h);
#else
    var top = 0.0;
#end
    var total = select(0.0, 1.0, row_part == 0u);
#else
    var top = LOWEST;
    var total = 0.0;
#end
#for j in RQ
    let i$j = first + ty + $(j * TY)u;
#for i in own_values
    var o$(j)_$i = vec4<f32>();
#end
#end
    for (var from_key = start; from_key < end; from_key += BK) {
#for l in k_loads
#if BK * DQ % TEAM == 0
        brought[k_d$l * $(k_row)u + k_key$l % 4u * $(BK // 4)u + k_key$l / 4u] = k_next$l;
#else
        if (lane + $(l * TEAM)u < $(BK * DQ)u) { brought[k_d$l * $(k_row)u + k_key$l % 4u * $(BK // 4)u + k_key$l / 4u] = k_next$l; }
#end
#end
#for l in v_loads
        let v_next$l = v_at4(v_base + min(from_key + v_key$l, end - 1u) * V_S + v_d$l);
#end
        workgroupBarrier();
#for j in RQ
#for i in RK
        var s$(j)_$i = 0.0;
#end
#end
        for (var d = 0u; d < DQ; d++) {
#for j in RQ
            let q$j = queries[d * $(q_row)u + ty + $(j * TY)u];
#end
#for i in RK
            let k$i = brought[d * $(k_row)u + tx + $(i % 4 * (BK // 4) + i // 4 * TX)u];
#end
#for c in 4
#for j in RQ
#for i in RK
            s$(j)_$i = fma(q$j[$c], k$i[$c], s$(j)_$i);
#end
#end
#end
        }
        workgroupBarrier();
#for l in v_loads
#if BK * DV % TEAM == 0
        brought[lane + $(l * TEAM)u] = v_next$l;
#else
        if (lane + $(l * TEAM)u < $(BK * DV)u) { brought[lane + $(l * TEAM)u] = v_next$l; }
#end
#end
#for j in RQ
        var most$j = LOWEST;
#for g in RK // 4
        let from$(j)_$g = from_key + 4u * (tx + $(g * TX)u);
#for c in 4
        s$(j)_$(4 * g + c) = scored(s$(j)_$(4 * g + c), b, h, i$j, from$(j)_$g + $(c)u);
        s$(j)_$(4 * g + c) = select(-inf_f32(), s$(j)_$(4 * g + c), sees(b, h, i$j, from$(j)_$g + $(c)u, before));
        most$j = max(most$j, s$(j)_$(4 * g + c));
#end
        scores[(tx + $(g * TX)u) * $(q_row)u + ty + $(j * TY)u] = vec4<f32>(s$(j)_$(4 * g), s$(j)_$(4 * g + 1), s$(j)_$(4 * g + 2), s$(j)_$(4 * g + 3));
#end
        tops[tx * BQ + ty + $(j * TY)u] = most$j;
#end
        workgroupBarrier();
        var most = top;
#for t in TX
        most = max(most, tops[$(t)u * BQ + row]);
#end
        let fade = power(top - most);
        top = most;
        total *= fade;
        if (row_part == 0u) { fades[row] = fade; }
#for n in BK // 4 // sharing
        let at$n = (row_part + $(n * sharing)u) * $(q_row)u + row;
        let p_of$n = powers(scores[at$n] - vec4<f32>(top));
        total += (p_of$(n).x + p_of$(n).y) + (p_of$(n).z + p_of$(n).w);
        scores[at$n] = p_of$n;
#end
#for l in k_loads
        k_next$l = k_at4(k_base + min(from_key + BK + k_key$l, end - 1u) * K_S + k_d$l);
#end
        workgroupBarrier();
#for j in RQ
        let fade$j = fades[ty + $(j * TY)u];
#for i in own_values
        o$(j)_$i *= fade$j;
#end
#end
        for (var n = 0u; n < BK / 4u; n++) {
#for j in RQ
            let p$j = scores[n * $(q_row)u + ty + $(j * TY)u];
#end
#for c in 4
#for i in own_values
#if DV % TX == 0
            let v$(c)_$i = brought[(n * 4u + $(c)u) * DV + tx + $(i * TX)u];
#else
            let v$(c)_$i = brought[(n * 4u + $(c)u) * DV + min(tx + $(i * TX)u, DV - 1u)];
#end
#for j in RQ
            o$(j)_$i = fma(vec4<f32>(p$j[$c]), v$(c)_$i, o$(j)_$i);
#end
#end
#end
        }
        workgroupBarrier();
    }
    tops[lane] = total;
    workgroupBarrier();
#for j in RQ
    var whole$j = tops[ty + $(j * TY)u];
#for n in sharing - 1
    whole$j += tops[$((n + 1) * BQ)u + ty + $(j * TY)u];
#end
#if EMPTY_IS_ZERO
    let share$j = select(1.0 / whole$j, 0.0, whole$j == 0.0);
#else
    let share$j = 1.0 / whole$j;
#end
    if (i$j < SQ) {
        let y_at$j = b * Y_B + h * Y_H + i$j * Y_S + tx;
#for i in own_values
        if (tx + $(i * TX)u < DV) {
#if EMPTY_IS_ZERO == 2
            y_set4(y_at$j + $(i * TX)u, select(o$(j)_$i * share$j, vec4<f32>(), is_nan_f32(whole$j)));
#else
            y_set4(y_at$j + $(i * TX)u, o$(j)_$i * share$j);
#end
        }
#end
    }
#end
}
