// Products of the same COLS vectors with several matrices of 4-bit codes, as packed_matvecs.wgsl has them, where the vectors may be rounded to
// bytes: y[c, n] = factor[c] * sum over units of 32 of x_scale[c, unit] * scale[n, block] * (sum of x[c, k] * code[n, k] - zero * sum of x[c, k]) + bias. A
// workgroup rounds the vectors once, each unit of 32 by its largest element (quantize_blocks.wgsl), into its memory, while the first weights are under
// way; then each of its TEAMS of TEAM invocations goes through ITERS times ROWS rows, of which an invocation has a unit at a time: 16 bytes of each row as the model stores them.
// Expects: x, gamma? (vectors of four elements), w (vectors of words: [N, K / 8]), table (scales [N, BLOCKS]), zp? and those of other matrices, w1 table1 zp1 c1
// y1 and so on; c, y; K COLS MATRICES WIDE NORM EPSILON N_0 N_1 N_2 as packed_matvecs.wgsl; BLOCK (a multiple of 32), TEAM TEAMS (several: of whole subgroups), POINTS, ZP_ROW, ZERO, ROWS, ITERS, ROUNDS
// (units that an invocation has of a row), COLUMN_GROUPS COUNT (workgroups that have COLS vectors each of the same rows; of one matrix). Needs subgroups.
// Source: MatMulNBits of ONNX Runtime (com.microsoft), accuracy_level 4.
const UNITS: u32 = K / 32u;
const OCTETS: u32 = K / 8u;
const OUTPUTS: u32 = $(ROWS * WIDE * COLS)u;
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
var<workgroup> bytes: array<vec2<u32>, OCTETS * COLS>;     // of eight elements: the even ones, the odd ones; first those that begin a unit, so that neighbours read neighbours
var<workgroup> numbers: array<vec2<f32>, UNITS * COLS>;    // of a unit: its scale, and that times the sum of its bytes
var<workgroup> sums: array<f32, PARTS * ITERS * OUTPUTS>;
#if NORM
var<workgroup> squares: array<f32, PARTS * COLS>;
#end
#if WIDE == 2
var<private> beside: f32;
#end

#if POINTS
fn zero_in(word: u32, at: u32) -> f32 { return f32(extractBits(word, at * 4u, 4u)); }
#end
fn codes_of_0(i: u32) -> vec4<u32> { return w_word4(i); }
fn scale_of_0(row: u32, block: u32) -> f32 { return table_at(row * BLOCKS + block); }
#if POINTS
fn zero_of_0(row: u32, block: u32) -> f32 { return zero_in(zp_word((row * ZP_ROW + block) / 8u), (row * ZP_ROW + block) % 8u); }
#end
#if MATRICES > 1
fn codes_of_1(i: u32) -> vec4<u32> { return w1_word4(i); }
fn scale_of_1(row: u32, block: u32) -> f32 { return table1_at(row * BLOCKS + block); }
#if POINTS
fn zero_of_1(row: u32, block: u32) -> f32 { return zero_in(zp1_word((row * ZP_ROW + block) / 8u), (row * ZP_ROW + block) % 8u); }
#end
#end
#if MATRICES > 2
fn codes_of_2(i: u32) -> vec4<u32> { return w2_word4(i); }
fn scale_of_2(row: u32, block: u32) -> f32 { return table2_at(row * BLOCKS + block); }
#if POINTS
fn zero_of_2(row: u32, block: u32) -> f32 { return zero_in(zp2_word((row * ZP_ROW + block) / 8u), (row * ZP_ROW + block) % 8u); }
#end
#end

#include word_of.wgsl

var<private> first_column: u32;
fn column_of(own: u32) -> u32 { return min(first_column + own, COUNT - 1u); }

// Every invocation of the workgroup calls it.
fn round_vectors(lane: u32) {
#for c in COLS
#if NORM
    var square$c = 0.0;
#end
#for o in (K // 8 + WORKGROUP_SIZE - 1) // WORKGROUP_SIZE
    let octet$(c)_$o = $(o)u * WORKGROUP_SIZE + lane;
    var low$(c)_$o = x_at4(column_of($(c)u) * $(K // 4)u + 2u * min(octet$(c)_$o, OCTETS - 1u));
    var high$(c)_$o = x_at4(column_of($(c)u) * $(K // 4)u + 2u * min(octet$(c)_$o, OCTETS - 1u) + 1u);
#if NORM
    let low_gamma$(c)_$o = gamma_at4(2u * min(octet$(c)_$o, OCTETS - 1u));
    let high_gamma$(c)_$o = gamma_at4(2u * min(octet$(c)_$o, OCTETS - 1u) + 1u);
#end
#end
#for o in (K // 8 + WORKGROUP_SIZE - 1) // WORKGROUP_SIZE
    {
#if NORM
        if (octet$(c)_$o < OCTETS) { square$c += dot(low$(c)_$o, low$(c)_$o) + dot(high$(c)_$o, high$(c)_$o); }
        low$(c)_$o *= low_gamma$(c)_$o;
        high$(c)_$o *= high_gamma$(c)_$o;
#end
        let most = max(bitcast<vec4<u32>>(abs(low$(c)_$o)), bitcast<vec4<u32>>(abs(high$(c)_$o)));    // in the order of the floats, NaN above infinity
        var top = max(max(most.x, most.y), max(most.z, most.w));
        top = max(top, subgroupShuffleXor(top, 1u));
        top = max(top, subgroupShuffleXor(top, 2u));
        let largest = bitcast<f32>(top);
        let up = select(127.0 / largest, 0.0, largest < 1e-35);     // 127 / 1e-37 is no float
        let a = vec4<i32>(round(low$(c)_$o * up));
        let b = vec4<i32>(round(high$(c)_$o * up));
        let both = a + b;
        var sum = both.x + both.y + both.z + both.w;
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        if (octet$(c)_$o < OCTETS) {
            bytes[$(c)u * OCTETS + octet$(c)_$o % 4u * UNITS + octet$(c)_$o / 4u] = vec2<u32>(word_of(vec4<i32>(a.xz, b.xz)), word_of(vec4<i32>(a.yw, b.yw)));
            if (octet$(c)_$o % 4u == 0u) { numbers[$(c)u * UNITS + octet$(c)_$o / 4u] = largest / 127.0 * vec2<f32>(1.0, f32(sum)); }
        }
    }
#end
#if NORM
    let all$c = subgroupAdd(square$c);
    if (subgroup_lane == 0u) { squares[subgroup_id * COLS + $(c)u] = all$c; }
#end
#end
    workgroupBarrier();
}

fn group_main(group: u32, lane: u32) {
    first_column = group % COLUMN_GROUPS * COLS;
    let whole = group / COLUMN_GROUPS;      // neighbours have the same rows
#for MATRIX in MATRICES // WIDE
#let n = (MATRIX == 0) * N_0 + (MATRIX == 1) * N_1 + (MATRIX == 2) * N_2
#let each = ROWS * TEAMS * ITERS
#let start = (MATRIX > 0) * ((N_0 + each - 1) // each) + (MATRIX > 1) * ((N_1 + each - 1) // each)
    if (whole >= $(start)u && whole < $(start + (n + each - 1) // each)u) {
    let first_row = (whole - $(start)u) * $(each)u;
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
    round_vectors(lane);
    var turn = 0u;
    for (var i = 0u; i < ITERS; i++) {
#for r in ROWS
#for m in WIDE
#for c in COLS
        var sum$(r)_$(m)_$c = 0.0;
#end
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
#for c in COLS
            {
            let of_x = numbers[$(c)u * UNITS + now];
#for q in 4
            let x$q = bytes[$(c)u * OCTETS + $(q)u * UNITS + now];
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
            sum$(r)_$(m)_$c = fma(scale$(r)_$m, fma(of_x.x, f32(whole_sum), -zero$(r)_$m * of_x.y), sum$(r)_$(m)_$c);
#else
            sum$(r)_$(m)_$c = fma(scale$(r)_$m, fma(of_x.x, f32(whole_sum), -ZERO * of_x.y), sum$(r)_$(m)_$c);
#end
            }
#end
#end
            }
#end
        }
#for r in ROWS
#for m in WIDE
#for c in COLS
        let all$(r)_$(m)_$c = subgroupAdd(sum$(r)_$(m)_$c);
        if (subgroup_lane == 0u) { sums[(subgroup_id * ITERS + i) * OUTPUTS + $((r * WIDE + m) * COLS + c)u] = all$(r)_$(m)_$c; }
#end
#end
#end
    }
    workgroupBarrier();
    for (var i = lane; i < $(each * COLS)u; i += WORKGROUP_SIZE) {
        let row = first_row + i / COLS;
        if (row < $(n)u && first_column + i % COLS < COUNT) {
            let its = i / $(ROWS * COLS)u;      // the team in the low part
            let from_sum = its / TEAMS * OUTPUTS + i / COLS % ROWS * $(WIDE * COLS)u + i % COLS;
            let first_part = its % TEAMS * (subgroups / TEAMS);
            var v = 0.0;
            var factor = 0.0;
#if WIDE == 2
            beside = 0.0;
#end
            for (var part = first_part; part < first_part + subgroups / TEAMS; part++) {
                v += sums[part * $(ITERS)u * OUTPUTS + from_sum];
#if WIDE == 2
                beside += sums[part * $(ITERS)u * OUTPUTS + from_sum + COLS];
#end
            }
#if NORM
            for (var part = 0u; part < subgroups; part++) { factor += squares[part * COLS + i % COLS]; }
            factor = 1.0 / sqrt(factor / f32(K) + EPSILON);
#else
            factor = 1.0;
#end
#if MATRIX
            y$(MATRIX)_set(i % COLS * $(n)u + row, fma(v, factor, c$(MATRIX)_at(row)));
#else
#if WIDE == 2
            beside = fma(beside, factor, c1_at(row));
#end
            y_set(column_of(i % COLS) * $(n)u + row, fma(v, factor, c_at(row)));
#end
        }
    }
    }
#end
}
