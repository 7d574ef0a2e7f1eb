// y[batch, j] = ALPHA * sum over k of w[j, k] * v[k] + BETA * c: four outputs for each of SIDE columns of a workgroup's invocations;
// the WORKGROUP_SIZE / SIDE invocations of a column share K, and add up in two rounds (a barrier costs more than a few additions).
// SIDE is 1 where k is contiguous in w.
// SPLIT > 1: K is cut into parts of PART, each summed into its own [BATCH, COUNT] of y; sum_parts.wgsl adds them.
// Expects: w, v, c?, y; w_base, v_base (offset of a batch), c_index (over y); COUNT K BATCH BLOCKS SIDE SPLIT PART,
// W_OUTER W_K V_K (strides), ALPHA BETA.
const SHARES: u32 = WORKGROUP_SIZE / SIDE;
const FEW: u32 = min(SHARES, 16u);
var<workgroup> sums: array<vec4<f32>, WORKGROUP_SIZE>;

fn w_or_zero(start: u32, j: u32, k: u32) -> f32 {
    if (COUNT % (4u * SIDE) == 0u || j < COUNT) { return w_at(start + j * W_OUTER + k * W_K); }
    return 0.0;
}

fn group_main(group: u32, lane: u32) {
    let outer = group / BLOCKS;   // part * BATCH + batch
    let k0 = outer / BATCH * PART;
    let j0 = group % BLOCKS * SIDE * 4u + lane % SIDE;
    let j = vec4<u32>(j0, j0 + SIDE, j0 + 2u * SIDE, j0 + 3u * SIDE);
    let start = w_base(outer % BATCH);
    let v_start = v_base(outer % BATCH);
    var sum = vec4<f32>();
    for (var k = k0 + lane / SIDE; k < min(K, k0 + PART); k += SHARES) {
        let w = vec4<f32>(w_or_zero(start, j.x, k), w_or_zero(start, j.y, k), w_or_zero(start, j.z, k), w_or_zero(start, j.w, k));
        sum = fma(w, vec4<f32>(v_at(v_start + k * V_K)), sum);
    }
    sums[lane] = sum;
    workgroupBarrier();
    if (SHARES > FEW && lane < FEW * SIDE) {
        var some = sums[lane];
        for (var s = 1u; s < SHARES / FEW; s++) { some += sums[lane + s * FEW * SIDE]; }
        sums[lane] = some;
    }
    workgroupBarrier();
    // The first 4 * SIDE invocations store an output each.
    let mine = group % BLOCKS * SIDE * 4u + lane;
    if (lane < 4u * SIDE && mine < COUNT) {
        let i = outer * COUNT + mine;
        var v = 0.0;
        for (var s = 0u; s < FEW; s++) { v += sums[lane % SIDE + s * SIDE][lane / SIDE]; }
        v *= ALPHA;
        if (HAS_C) { v += BETA * c_at(c_index(i)); }
        y_set(i, v);
    }
}
