// Products of one vector with several matrices of 4-bit codes, as packed_matvecs.wgsl has them, where the vector may be rounded to
// bytes: y[n] = factor * sum over units of 32 of x_scale[unit] * scale[n, block] * (sum of x[k] * code[n, k] - zero * sum of x[k]) + bias. A
// workgroup rounds the vector once, each unit of 32 by its largest element (quantize_blocks.wgsl), into its memory, while the first weights are under
// way; then each of its TEAMS of TEAM invocations goes through ITERS times ROWS rows, of which an invocation has a unit at a time: 16 bytes of each row as the model stores them.
// Expects: x, gamma? (vectors of four elements), w (vectors of words: [N, K / 8]), table (scales [N, BLOCKS]), zp? and those of other matrices, w1 table1 zp1 c1
// y1 and so on; c, y; K MATRICES WIDE NORM EPSILON N_0 N_1 N_2 as packed_matvecs.wgsl; BLOCK (a multiple of 32), TEAM TEAMS (several: of whole subgroups), POINTS, ZP_ROW, ZERO, ROWS, ITERS, ROUNDS
// (units that an invocation has of a row). Needs subgroups.
// Source: MatMulNBits of ONNX Runtime (com.microsoft), accuracy_level 4.
const UNITS: u32 = K / 32u;
const OCTETS: u32 = K / 8u;
const OUTPUTS: u32 = $(ROWS * WIDE)u;
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
var<workgroup> bytes: array<vec2<u32>, OCTETS>;     // of eight elements: the even ones, the odd ones; first those that begin a unit, so that neighbours read neighbours
var<workgroup> numbers: array<vec2<f32>, UNITS>;    // of a unit: its scale, and that times the sum of its bytes
var<workgroup> sums: array<f32, PARTS * ITERS * OUTPUTS>;
#if NORM
var<workgroup> squares: array<f32, PARTS>;
#end
#if WIDE == 2
var<private> beside: f32;
#end

#include stored_codes.wgsl

#include rounded_eight.wgsl

// Every invocation of the workgroup calls it.
fn round_vector(lane: u32) {
#if NORM
    var square = 0.0;
#end
#for o in (K // 8 + WORKGROUP_SIZE - 1) // WORKGROUP_SIZE
    let octet$o = $(o)u * WORKGROUP_SIZE + lane;
    var low$o = x_at4(2u * min(octet$o, OCTETS - 1u));
    var high$o = x_at4(2u * min(octet$o, OCTETS - 1u) + 1u);
#if NORM
    let low_gamma$o = gamma_at4(2u * min(octet$o, OCTETS - 1u));
    let high_gamma$o = gamma_at4(2u * min(octet$o, OCTETS - 1u) + 1u);
#end
#end
#for o in (K // 8 + WORKGROUP_SIZE - 1) // WORKGROUP_SIZE
    {
#if NORM
        if (octet$o < OCTETS) { square += dot(low$o, low$o) + dot(high$o, high$o); }
        low$o *= low_gamma$o;
        high$o *= high_gamma$o;
#end
        let eight = rounded_eight(low$o, high$o);
        if (octet$o < OCTETS) {
            bytes[octet$o % 4u * UNITS + octet$o / 4u] = eight.words;
            if (octet$o % 4u == 0u) { numbers[octet$o / 4u] = eight.scale * vec2<f32>(1.0, f32(eight.sum)); }
        }
    }
#end
#if NORM
    let all = subgroupAdd(square);
    if (subgroup_lane == 0u) { squares[subgroup_id] = all; }
#end
    workgroupBarrier();
}

fn group_main(group: u32, lane: u32) {
#for MATRIX in MATRICES // WIDE
#let n = (MATRIX == 0) * N_0 + (MATRIX == 1) * N_1 + (MATRIX == 2) * N_2
#let each = ROWS * TEAMS * ITERS
#let start = (MATRIX > 0) * ((N_0 + each - 1) // each) + (MATRIX > 1) * ((N_1 + each - 1) // each)
    if (group >= $(start)u && group < $(start + (n + each - 1) // each)u) {
    let first_row = (group - $(start)u) * $(each)u;
    let team = lane / TEAM;
    let member = lane % TEAM;
    var unit = min(member, UNITS - 1u);
#for r in ROWS
    let from$r = min(first_row + team * ROWS + $(r)u, $(n - 1)u);
#for m in WIDE
    var next$(r)_$m = codes_of_$(MATRIX + m)(from$r * UNITS + unit);
    var next_scale$(r)_$m = scale_of_$(MATRIX + m)(from$r, unit / $(BLOCK // 32)u);
#if POINTS
    var next_zero$(r)_$m = zero_of_$(MATRIX + m)(from$r, unit / $(BLOCK // 32)u);
#end
#end
#end
    round_vector(lane);
    var turn = 0u;
    for (var i = 0u; i < ITERS; i++) {
#for r in ROWS
#for m in WIDE
        var sum$(r)_$m = 0.0;
#end
#end
        for (var at_round = 0u; at_round < ROUNDS; at_round++) {
            let own = at_round * TEAM + member;
            let now = min(own, UNITS - 1u);
#for r in ROWS
#for m in WIDE
            let codes$(r)_$m = next$(r)_$m;
            let scale$(r)_$m = select(0.0, next_scale$(r)_$m, own < UNITS);
#if POINTS
            let zero$(r)_$m = next_zero$(r)_$m;
#end
#end
#end
            turn = min(turn + 1u, $(ITERS * ROUNDS - 1)u);
            unit = min(turn % ROUNDS * TEAM + member, UNITS - 1u);
#for r in ROWS
            let row$r = min(first_row + (turn / ROUNDS * TEAMS + team) * ROWS + $(r)u, $(n - 1)u);
#for m in WIDE
            next$(r)_$m = codes_of_$(MATRIX + m)(row$r * UNITS + unit);
            next_scale$(r)_$m = scale_of_$(MATRIX + m)(row$r, unit / $(BLOCK // 32)u);
#if POINTS
            next_zero$(r)_$m = zero_of_$(MATRIX + m)(row$r, unit / $(BLOCK // 32)u);
#end
#end
#end
            let of_x = numbers[now];
#for q in 4
            let x$q = bytes[$(q)u * UNITS + now];
#end
#for r in ROWS
#for m in WIDE
            {
            let even = codes$(r)_$m & vec4<u32>(0x0f0f0f0fu);
            let odd = (codes$(r)_$m >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
            var whole_sum = dot4I8Packed(even[0], x0[0]) + dot4I8Packed(odd[0], x0[1]);
#for q in 3
            whole_sum += dot4I8Packed(even[$(q + 1)], x$(q + 1)[0]) + dot4I8Packed(odd[$(q + 1)], x$(q + 1)[1]);
#end
#if POINTS
            sum$(r)_$m = fma(scale$(r)_$m, fma(of_x.x, float_of(whole_sum), -zero$(r)_$m * of_x.y), sum$(r)_$m);
#else
            sum$(r)_$m = fma(scale$(r)_$m, fma(of_x.x, float_of(whole_sum), -ZERO * of_x.y), sum$(r)_$m);
#end
            }
#end
#end
        }
#for r in ROWS
#for m in WIDE
        let all$(r)_$m = subgroupAdd(sum$(r)_$m);
        if (subgroup_lane == 0u) { sums[(subgroup_id * ITERS + i) * OUTPUTS + $(r * WIDE + m)u] = all$(r)_$m; }
#end
#end
    }
    workgroupBarrier();
    for (var i = lane; i < $(each)u; i += WORKGROUP_SIZE) {
        let row = first_row + i;
        if (row < $(n)u) {
            let its = i / ROWS;      // the team in the low part
            let from_sum = its / TEAMS * OUTPUTS + i % ROWS * WIDE;
            let first_part = its % TEAMS * (subgroups / TEAMS);
            var v = 0.0;
            var factor = 0.0;
#if WIDE == 2
            beside = 0.0;
#end
            for (var part = first_part; part < first_part + subgroups / TEAMS; part++) {
                v += sums[part * $(ITERS)u * OUTPUTS + from_sum];
#if WIDE == 2
                beside += sums[part * $(ITERS)u * OUTPUTS + from_sum + 1u];
#end
            }
#if NORM
            for (var part = 0u; part < subgroups; part++) { factor += squares[part]; }
            factor = 1.0 / sqrt(factor / f32(K) + EPSILON);
#else
            factor = 1.0;
#end
#if MATRIX
            y$(MATRIX)_set(row, fma(v, factor, c$(MATRIX)_at(row)));
#else
#if WIDE == 2
            beside = fma(beside, factor, c1_at(row));
#end
            y_set(row, fma(v, factor, c_at(row)));
#end
        }
    }
    }
#end
}
