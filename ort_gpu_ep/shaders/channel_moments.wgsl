// Of each channel of x the mean and the variance, and the running ones moved towards them: next = MOMENTUM old + (1 - MOMENTUM) now. A
// workgroup per channel goes over it twice, and sums by partial sums of 32.
// Expects: x, mean, variance (running), CHANNELS, INNER (neighbours of a channel), COUNT (elements of a channel), MOMENTUM.
// Source: ONNX BatchNormalization, training.
var<workgroup> sums: array<f32, WORKGROUP_SIZE>;

fn place(k: u32, channel: u32) -> u32 { return (k / INNER * CHANNELS + channel) * INNER + k % INNER; }

fn sum_of(channel: u32, lane: u32, middle: f32, squared: bool) -> f32 {
    var sum = 0.0;
    var k = lane;
    while (k < COUNT) {
        var part = 0.0;
        for (var j = 0u; j < 32u && k < COUNT; j++) {
            let v = x_at(place(k, channel)) - middle;
            part += select(v, v * v, squared);
            k += WORKGROUP_SIZE;
        }
        sum += part;
    }
    sums[lane] = sum;
    for (var s = WORKGROUP_SIZE / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane < s) { sums[lane] += sums[lane + s]; }
    }
    workgroupBarrier();
    let whole = sums[0];
    workgroupBarrier();
    return whole;
}

fn group_main(group: u32, lane: u32) {
    let m = sum_of(group, lane, 0.0, false) / f32(COUNT);
    let v = sum_of(group, lane, m, true) / f32(COUNT);
    if (lane == 0u) {
        now_mean_set(group, m);
        now_variance_set(group, v);
        next_mean_set(group, MOMENTUM * mean_at(group) + (1.0 - MOMENTUM) * m);
        next_variance_set(group, MOMENTUM * variance_at(group) + (1.0 - MOMENTUM) * v);
    }
}
