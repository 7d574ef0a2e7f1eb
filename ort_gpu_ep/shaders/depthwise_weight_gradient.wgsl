// dw[c, k] = sum over n and p of maps[n, c, p] * image[n, c, p * S + k * D - H]: a workgroup for each tap of each channel.
// Expects: image [N, C, IN0, IN1], maps [N, C, OUT0, OUT1], and for both axes IN, OUT, K, S, D, H; N, C.
// Source: the body of DepthwiseWeightGradient in training/functions.py.
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;

fn group_main(group: u32, lane: u32) {
    let tap = group % (K0 * K1);
    let c = group / (K0 * K1);
    let places = OUT0 * OUT1;
    let y0 = i32(tap / K1 * D0) - i32(H0);
    let x0 = i32(tap % K1 * D1) - i32(H1);
    var total = 0.0;
    for (var j = lane; j < N * places; j += WORKGROUP_SIZE) {
        let p = j % places;
        let plane = j / places * C + c;
        let y = i32(p / OUT1 * S0) + y0;
        let x = i32(p % OUT1 * S1) + x0;
        if (y >= 0 && x >= 0 && y < i32(IN0) && x < i32(IN1)) {
            total += maps_at(plane * places + p) * image_at((plane * IN0 + u32(y)) * IN1 + u32(x));
        }
    }
    parts[lane] = total;
    for (var s = WORKGROUP_SIZE / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane < s) { parts[lane] += parts[lane + s]; }
    }
    if (lane == 0u) { dw_set(group, parts[0]); }
}
