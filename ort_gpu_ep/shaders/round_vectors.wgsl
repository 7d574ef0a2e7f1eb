// Vectors as signed bytes, a scale for each unit of 32 elements, in the order in which byte_vectors.wgsl reads them. codes[vector, 2, unit, 4]: words of four
// bytes, of each eight elements the even ones, then the odd ones. numbers[vector, 2, unit]: the scales, and these times the sum of the unit's bytes.
// With NORM x is multiplied by gamma, and the numbers by 1 / sqrt(mean x^2 + EPSILON).
// Expects: x, gamma? (vectors), codes, numbers; K NORM EPSILON, SHARES (workgroups of a vector, 1 with NORM), TURNS (of a workgroup). Needs subgroups.
const UNITS: u32 = K / 32u;
const OCTETS: u32 = K / 8u;
#if NORM
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
var<workgroup> squares: array<f32, PARTS>;
#end

#include rounded_eight.wgsl

fn group_main(group: u32, lane: u32) {
    let column = group / SHARES;
    let first = group % SHARES * $(TURNS)u * WORKGROUP_SIZE + lane;
#if NORM
    var square = 0.0;
#end
#for t in TURNS
    let octet$t = first + $(t)u * WORKGROUP_SIZE;
    let from$t = column * $(K // 4)u + 2u * min(octet$t, OCTETS - 1u);
    var low$t = x_at4(from$t);
    var high$t = x_at4(from$t + 1u);
#if NORM
    let low_gamma$t = gamma_at4(2u * min(octet$t, OCTETS - 1u));
    let high_gamma$t = gamma_at4(2u * min(octet$t, OCTETS - 1u) + 1u);
#end
#end
#for t in TURNS
#if NORM
    if (octet$t < OCTETS) { square += dot(low$t, low$t) + dot(high$t, high$t); }
    low$t *= low_gamma$t;
    high$t *= high_gamma$t;
#end
    let eight$t = rounded_eight(low$t, high$t);
    if (octet$t < OCTETS) {
        codes_set(column * 2u * OCTETS + octet$t, eight$t.words.x);
        codes_set((column * 2u + 1u) * OCTETS + octet$t, eight$t.words.y);
    }
#end
    var factor = 1.0;
#if NORM
    let all = subgroupAdd(square);
    if (subgroup_lane == 0u) { squares[subgroup_id] = all; }
    workgroupBarrier();
    var total = 0.0;
    for (var part = 0u; part < subgroups; part++) { total += squares[part]; }
    factor = 1.0 / sqrt(total / f32(K) + EPSILON);
#end
#for t in TURNS
    if (octet$t < OCTETS && octet$t % 4u == 0u) {
        numbers_set(column * 2u * UNITS + octet$t / 4u, factor * eight$t.scale);
        numbers_set((column * 2u + 1u) * UNITS + octet$t / 4u, factor * eight$t.scale * f32(eight$t.sum));
    }
#end
}
