// y = softmax(SCALE q k^T + mask) v of each head, in one pass over the keys as attention.wgsl (online softmax), both products in register
// tiles. A workgroup has BQ queries, which stay in workgroup memory; a step brings BK keys there, and then their values to the same place.
// A lane has four neighbouring keys' scores of RQ queries, and of the same queries the sums of values. It learns the largest score of its queries
// from the other lanes, and its powers go through workgroup memory in PIECES. What a step brings is under way in registers while the product before
// it is calculated. In workgroup memory column c of the keys is key (c % (BK / 4)) * 4 + c / (BK / 4), so that neighbours read neighbouring vectors.
// Grid: blocks of queries, heads, batches.
// Expects: what attention.wgsl does but PARTS, QL, RK, SLICES, CHUNK and CODES; DQ, DV: vectors of a head's elements; TEAM (all lanes) TX TY
// (lanes beside each other over keys, BK / 4, and over queries).
// Source: ONNX Attention; Dao et al., FlashAttention, arXiv:2205.14135.
#let q_row = BQ + 1
#let k_row = BK + 1
#let k_room = DQ * k_row
#let room = k_room if k_room > BK * DV else BK * DV
#let p_room = TX // PIECES * q_row
#let tops = TEAM * RQ // 4
#let k_loads = (BK * DQ + TEAM - 1) // TEAM
#let v_loads = (BK * DV + TEAM - 1) // TEAM
#let own_values = (DV + TX - 1) // TX
var<workgroup> queries: array<vec4<f32>, $(DQ * q_row)>;
var<workgroup> brought: array<vec4<f32>, $room>;        // keys, then values
var<workgroup> passed: array<vec4<f32>, $(p_room if p_room > tops else tops)>;      // the lanes' largest scores, then powers; at the end sums

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
#for m in RQ // 4
#if SINK
#if SINK == 1
    var top$m = vec4<f32>(sink_at(h));
#else
    var top$m = vec4<f32>();
#end
    var total$m = select(vec4<f32>(), vec4<f32>(1.0), tx == 0u);
#else
    var top$m = vec4<f32>(LOWEST);
    var total$m = vec4<f32>();
#end
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
#for i in 4
        var s$(j)_$i = 0.0;
#end
#end
        for (var d = 0u; d < DQ; d++) {
#for j in RQ
            let q$j = queries[d * $(q_row)u + ty + $(j * TY)u];
#end
#for i in 4
            let k$i = brought[d * $(k_row)u + tx + $(i * TX)u];
#end
#for c in 4
#for j in RQ
#for i in 4
            s$(j)_$i = fma(q$j[$c], k$i[$c], s$(j)_$i);
#end
#end
#end
        }
#for j in RQ
#for c in 4
        s$(j)_$c = scored(s$(j)_$c, b, h, i$j, from_key + 4u * tx + $(c)u);
        s$(j)_$c = select(-inf_f32(), s$(j)_$c, sees(b, h, i$j, from_key + 4u * tx + $(c)u, before));
#end
        let most$j = max(max(s$(j)_0, s$(j)_1), max(s$(j)_2, s$(j)_3));
#end
#for m in RQ // 4
        passed[$(m * TEAM)u + tx * TY + ty] = vec4<f32>(most$(4 * m), most$(4 * m + 1), most$(4 * m + 2), most$(4 * m + 3));
#end
        workgroupBarrier();
#for l in v_loads
#if BK * DV % TEAM == 0
        brought[lane + $(l * TEAM)u] = v_next$l;
#else
        if (lane + $(l * TEAM)u < $(BK * DV)u) { brought[lane + $(l * TEAM)u] = v_next$l; }
#end
#end
#for m in RQ // 4
        var new$m = top$m;
#for t in TX
        new$m = max(new$m, passed[$(m * TEAM + t * TY)u + ty]);
#end
        let fade$m = powers(top$m - new$m);
        top$m = new$m;
        total$m *= fade$m;
#end
#for j in RQ
        let p$j = powers(vec4<f32>(s$(j)_0, s$(j)_1, s$(j)_2, s$(j)_3) - vec4<f32>(top$(j // 4)[$(j % 4)]));
        total$(j // 4)[$(j % 4)] += (p$(j).x + p$(j).y) + (p$(j).z + p$(j).w);
#for i in own_values
        o$(j)_$i *= fade$(j // 4)[$(j % 4)];
#end
#end
#for l in k_loads
        k_next$l = k_at4(k_base + min(from_key + BK + k_key$l, end - 1u) * K_S + k_d$l);
#end
#for piece in PIECES
        workgroupBarrier();
#if PIECES > 1
        if (tx / $(TX // PIECES)u == $(piece)u) {
#for j in RQ
            passed[(tx - $(piece * (TX // PIECES))u) * $(q_row)u + ty + $(j * TY)u] = p$j;
#end
        }
#else
#for j in RQ
        passed[tx * $(q_row)u + ty + $(j * TY)u] = p$j;
#end
#end
        workgroupBarrier();
        for (var n = 0u; n < $(TX // PIECES)u; n++) {
#for j in RQ
            let r$j = passed[n * $(q_row)u + ty + $(j * TY)u];
#end
#for c in 4
#for i in own_values
#if DV % TX == 0
            let v$(c)_$i = brought[(n * 4u + $(piece * (BK // PIECES) + c)u) * DV + tx + $(i * TX)u];
#else
            let v$(c)_$i = brought[(n * 4u + $(piece * (BK // PIECES) + c)u) * DV + min(tx + $(i * TX)u, DV - 1u)];
#end
#for j in RQ
            o$(j)_$i = fma(vec4<f32>(r$j[$c]), v$(c)_$i, o$(j)_$i);
#end
#end
#end
        }
#end
        workgroupBarrier();
    }
#for m in RQ // 4
    passed[$(m * TEAM)u + tx * TY + ty] = total$m;
#end
    workgroupBarrier();
#for m in RQ // 4
    var sum$m = vec4<f32>();
#for t in TX
    sum$m += passed[$(m * TEAM + t * TY)u + ty];
#end
#end
#for j in RQ
    let whole$j = sum$(j // 4)[$(j % 4)];
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
