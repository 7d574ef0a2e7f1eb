// y[batch, j] = ALPHA * sum over k of w[k, j] * v[k] + BETA * c, where four neighbouring columns of w lie together: an invocation sums
// four outputs over its share of K, with 128 bytes of loads under way; the WORKGROUP_SIZE / SIDE invocations of a column add up in two rounds.
// SPLIT > 1: K is cut into parts of PART, each summed into its own [BATCH, COUNT] of y; sum_parts.wgsl adds them.
// Expects: w, y (as vectors of four elements), v, c?; w_base, v_base (offset of a batch), c_index (over y); COUNT4 (vectors of a row),
// W_K4 (vectors from one k to the next), V_K, K, BATCH, BLOCKS, SIDE, PART, ALPHA, BETA.
const SHARES: u32 = WORKGROUP_SIZE / SIDE;
const FEW: u32 = min(SHARES, 8u);
var<workgroup> sums: array<vec4<f32>, WORKGROUP_SIZE>;

fn group_main(group: u32, lane: u32) {
    let outer = group / BLOCKS;   // part * BATCH + batch
    let k0 = outer / BATCH * PART;
    let end = min(K, k0 + PART);
    let j = group % BLOCKS * SIDE + lane % SIDE;
    let at = w_base(outer % BATCH) / 4u + min(j, COUNT4 - 1u);
    let v_start = v_base(outer % BATCH);
    var even = vec4<f32>();
    var odd = vec4<f32>();
    var k = k0 + lane / SIDE;
#let loads = 256 // W_BITS
    for (; k + $(loads - 1)u * SHARES < end; k += $(loads)u * SHARES) {
#for i in loads
        let w$i = w_four(at + (k + $(i)u * SHARES) * W_K4);
#end
#for i in loads // 2
        even = fma(w_of_four(w$(2 * i)), vec4<f32>(v_at(v_start + (k + $(2 * i)u * SHARES) * V_K)), even);
        odd = fma(w_of_four(w$(2 * i + 1)), vec4<f32>(v_at(v_start + (k + $(2 * i + 1)u * SHARES) * V_K)), odd);
#end
    }
    for (; k < end; k += SHARES) { even = fma(w_at4(at + k * W_K4), vec4<f32>(v_at(v_start + k * V_K)), even); }
    sums[lane] = even + odd;
    workgroupBarrier();
    if (SHARES > FEW && lane < FEW * SIDE) {
        var some = sums[lane];
        for (var s = 1u; s < SHARES / FEW; s++) { some += sums[lane + s * FEW * SIDE]; }
        sums[lane] = some;
    }
    workgroupBarrier();
    if (lane < SIDE && j < COUNT4) {
        let i = outer * COUNT4 + j;
        var v = sums[lane];
        for (var s = 1u; s < FEW; s++) { v += sums[lane + s * SIDE]; }
        v *= ALPHA;
        if (HAS_C) { v += BETA * vec4<f32>(c_at(c_index(4u * i)), c_at(c_index(4u * i + 1u)), c_at(c_index(4u * i + 2u)), c_at(c_index(4u * i + 3u))); }
        y_set4(i, v);
    }
}
