// Rows of x times rows of codes of their experts, + bias: y[t, n] = the sum over TERMS r of t of that product times the share of r, where there are shares.
// A workgroup has ROWS rows of w for one t; its invocations share the TERMS * K elements of each: one reads PER codes of each row at a time.
// GATING: y[t, n] = gated(gate, up), two rows of w, in turn (1) or a half apart (2).
// ROUTES: each workgroup finds the experts of its token by itself, and one of a token's stores them and their shares for the layers behind.
// ORDERED: elements of a row of x lie as its lanes read them: the first four of each PER, then the second four, and so on. LAID_OUT > 0: those of y, too, for
// LAID_OUT codes that the next layer reads at a time.
// Expects: x ([.., K], vectors), scores and weights? (include/routed.wgsl), or chosen (an expert for each r) and shares? (of each r), what expert_weight.wgsl
// does, bias? ([EXPERTS, N]), y; EXPERTS TERMS SLOTS (r of a token), SHARED (r that have one x), PER = 128 / BITS, all of which have one scale, HALVES (as
// packed_matvec.wgsl has it), SUBGROUPS; with GATING what gated.wgsl does. Source: MoE and QMoE of ONNX Runtime.
#include expert_weight.wgsl
#if GATING
#include gated.wgsl
#end
#if ROUTES
#include routed.wgsl
#end
#default HAS_SHARES = 0
#let each = ROWS // 2 if GATING else ROWS
#let fours = 8 // BITS
#let beside = 10 // BITS
const OUT: u32 = $(N // 2 if GATING else N)u;
const ITEMS: u32 = K / PER;
const OUTPUTS: u32 = ROWS;
#if SUBGROUPS
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
#else
const PARTS: u32 = WORKGROUP_SIZE;
#end
#if HALVES
// As include/packed_codes.wgsl has them.
const MASK: u32 = ((1u << BITS) - 1u) * 0x10001u;
const LIFT: f32 = 16777216.0;
#end
var<workgroup> sums: array<f32, PARTS * OUTPUTS>;

fn expert_of(r: u32) -> u32 {
#if ROUTES
    return routed[r % SLOTS];
#else
    return u32(clamp(chosen_at(r), 0, i32(EXPERTS) - 1));
#end
}

fn share_of(r: u32) -> f32 {
#if HAS_SHARES
    return shares_at(r);
#else
    return 1.0;
#end
}

fn place_in_row(item: u32) -> u32 {
#if TERMS == 1
    return item;
#else
    return item % ITEMS;
#end
}

fn row_of_x(tile: u32, item: u32) -> u32 {
#if TERMS == 1
    return tile;
#else
    return tile * TERMS + item / ITEMS;
#end
}

// Which four of x meets the j-th four codes of an item.
fn four_of(r: u32, item: u32, j: u32) -> u32 {
#if ORDERED
    return r / SHARED * $(K // 4)u + j * ITEMS + item;
#else
    return r / SHARED * $(K // 4)u + item * $(PER // 4)u + j;
#end
}

fn row_of(first: u32, i: u32) -> u32 {
#if GATING == 1
    let n = 2u * first + i;
#else
#if GATING == 2
    let n = first + i % $(each)u + i / $(each)u * $(N // 2)u;
#else
    let n = first + i;
#end
#end
#if N % ROWS
    return min(n, N - 1u);
#else
    return n;
#end
}

// The product of a row of y, of all parts of the workgroup, with its bias.
fn finished(i: u32, tile: u32, first: u32, parts: u32) -> f32 {
    var v = 0.0;
    for (var part = 0u; part < parts; part++) { v += sums[part * OUTPUTS + i]; }
#if HAS_BIAS
    for (var s = 0u; s < TERMS; s++) {
        let r = tile * TERMS + s;
        v = fma(share_of(r), bias_at(expert_of(r) * N + row_of(first, i)), v);
    }
#end
    return v;
}

fn group_main(group: u32, lane: u32) {
    let blocks = (OUT + $(each - 1)u) / $(each)u;
    let first = group % blocks * $(each)u;
    let tile = group / blocks;
#if ROUTES
    let token = tile * TERMS / SLOTS;
    route(token, lane);
    if (group % (blocks * SLOTS) == 0u) {
        for (var s = lane; s < SLOTS; s += WORKGROUP_SIZE) {
            chosen_set(token * SLOTS + s, i32(routed[s]));
            shares_set(token * SLOTS + s, part_of_slot(token, s));
        }
    }
#end
#for i in ROWS
    var sum$(i)_0 = 0.0;
#end
    for (var item = lane; item < TERMS * ITEMS; item += WORKGROUP_SIZE) {
        let at = place_in_row(item);
        let r = row_of_x(tile, item);
        let e = expert_of(r);
        let share = share_of(r);
#for i in ROWS
        let w$i = w_word4((e * N + row_of(first, $(i)u)) * ITEMS + at);
#end
#for i in ROWS
        let scale$i = share * scale_of(e, row_of(first, $(i)u), at * PER);
        let zero$i = zero_of(e, row_of(first, $(i)u), at * PER);
        var own$i = 0.0;
#end
#if HALVES
        var total = 0.0;
#end
#for j in 4
        {
#for q in fours
            let plain$q = x_at4(four_of(r, at, $(j * fours + q)u));
#if HALVES
            total += (plain$q.x + plain$q.y) + (plain$q.z + plain$q.w);
#let a = 4 * q % (16 // BITS) % beside * BITS
#let b = (4 * q + 1) % (16 // BITS) % beside * BITS
#let c = (4 * q + 2) % (16 // BITS) % beside * BITS
#let d = (4 * q + 3) % (16 // BITS) % beside * BITS
            let x$q = plain$q * vec4<f32>(LIFT / f32(1u << $(a)u), LIFT / f32(1u << $(b)u), LIFT / f32(1u << $(c)u), LIFT / f32(1u << $(d)u));
#end
#end
#for i in ROWS
#if HALVES
#for p in 16 // BITS
#let late = p + 16 // BITS
            let pair$(i)_$p = unpack2x16float((w$i[$j] >> $(p // beside * beside * BITS)u) & (MASK << $(p % beside * BITS)u));
            own$i = fma(pair$(i)_$p.x, x$(p // 4)[$(p % 4)], own$i);
            own$i = fma(pair$(i)_$p.y, x$(late // 4)[$(late % 4)], own$i);
#end
#else
#for q in fours
            own$i += dot(four_codes(w$i[$j] >> $(4 * BITS * q)u) - zero$i, plain$q);
#end
#end
#end
        }
#end
#for i in ROWS
#if HALVES
        own$i = fma(-zero$i, total, own$i);
#end
        sum$(i)_0 = fma(scale$i, own$i, sum$(i)_0);
#end
    }
#if HALVES
    // Zero points were taken off sums: what is not finite by that is added up anew, code by code.
    var all = 0.0;
#for i in ROWS
    all += sum$(i)_0;
#end
    if ((bitcast<u32>(all) & 0x7f800000u) == 0x7f800000u) {
#for i in ROWS
        sum$(i)_0 = 0.0;
#end
        for (var item = lane; item < TERMS * ITEMS; item += WORKGROUP_SIZE) {
            let at = place_in_row(item);
            let r = row_of_x(tile, item);
            let e = expert_of(r);
            for (var j = 0u; j < $(4 * fours)u; j++) {
                let four = x_at4(four_of(r, at, j));
#for i in ROWS
                {
                    let n = row_of(first, $(i)u);
                    let codes = four_codes(w_word4((e * N + n) * ITEMS + at)[j / $(fours)u] >> (j % $(fours)u * $(4 * BITS)u));
                    sum$(i)_0 = fma(share_of(r) * scale_of(e, n, at * PER), dot(codes - zero_of(e, n, at * PER), four), sum$(i)_0);
                }
#end
            }
        }
    }
#end
#let SUMS = ROWS
#let COLS = 1
#include lane_sums.wgsl
    if (lane < $(each)u && first + lane < OUT) {
#if GATING == 1
        let v = gated(finished(2u * lane, tile, first, parts), finished(2u * lane + 1u, tile, first, parts));
#end
#if GATING == 2
        let v = gated(finished(lane, tile, first, parts), finished(lane + $(each)u, tile, first, parts));
#end
#if not GATING
        let v = finished(lane, tile, first, parts);
#end
#if LAID_OUT
        let n = first + lane;
        y_set(tile * OUT + (n % LAID_OUT / 4u * (OUT / LAID_OUT) + n / LAID_OUT) * 4u + n % 4u, v);
#else
        y_set(tile * OUT + first + lane, v);
#end
    }
}
