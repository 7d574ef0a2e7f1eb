// range[2 g], range[2 g + 1] = min and max of zero and every GROUPS-th run of WORKGROUP_SIZE elements of x. One workgroup each.
// Expects: x, range, SIZE. Source: ONNX DynamicQuantizeLinear: the range is made to hold zero.
var<workgroup> low: array<f32, WORKGROUP_SIZE>;
var<workgroup> high: array<f32, WORKGROUP_SIZE>;

fn group_main(group: u32, lane: u32) {
    var least = 0.0;
    var most = 0.0;
    for (var i = group * WORKGROUP_SIZE + lane; i < SIZE; i += GROUPS * WORKGROUP_SIZE) {
        least = min(least, x_at(i));
        most = max(most, x_at(i));
    }
    low[lane] = least;
    high[lane] = most;
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            low[lane] = min(low[lane], low[lane + half]);
            high[lane] = max(high[lane], high[lane + half]);
        }
    }
    if (lane == 0u) {
        range_set(2u * group, low[0]);
        range_set(2u * group + 1u, high[0]);
    }
}
