// y[n, c] = the mean of x over PLACES places of a channel, from x's scale and zero point to y's: four neighbours, a word of y, by TEAM
// invocations. The sum is an integer. Expects: x, y, x_scale, x_zp, y_scale, y_zp, WORDS and SIZE (words and elements of y), CHANNELS,
// PLACES, TEAM (a power of two), LAST (channels last), FOURS (then also a whole number of words a place), LOW and HIGH (the range of y).
// Source: com.microsoft QLinearGlobalAveragePool.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> parts: array<vec4<i32>, WORKGROUP_SIZE>;

fn place_of(i: u32, p: u32) -> u32 {
    if (LAST) { return (i / CHANNELS * PLACES + p) * CHANNELS + i % CHANNELS; }
    return i * PLACES + p;
}

fn mean(sum: i32) -> u32 {
    let scale = divide_f32(x_scale_at(0u), y_scale_at(0u) * f32(PLACES)).x;
    let biased = f32(sum - i32(PLACES) * i32(x_zp_at(0u)));
    return u32(i32(clamp(round(biased * scale) + f32(y_zp_at(0u)), LOW, HIGH))) & 0xffu;
}

fn group_main(group: u32, lane: u32) {
    let slot = lane / TEAM;
    let member = lane % TEAM;
    let word = group * PER_GROUP + slot;
    var total = vec4<i32>();
    if (word < WORDS) {
        for (var p = member; p < PLACES; p += TEAM) {
#if FOURS
            let four = x_word((word * 4u / CHANNELS * PLACES + p) * (CHANNELS / 4u) + word % (CHANNELS / 4u));
#if SIGNED
            total += unpack4xI8(four);
#else
            total += vec4<i32>(unpack4xU8(four));
#end
#else
#for j in 4
            if (4u * word + $(j)u < SIZE) { total[$j] += i32(x_at(place_of(4u * word + $(j)u, p))); }
#end
#end
        }
    }
    parts[lane] = total;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[lane] += parts[lane + s]; }
    }
    if (member == 0u && word < WORDS) {
        let sums = parts[lane];
        y_store_word(word, mean(sums.x) | (mean(sums.y) << 8u) | (mean(sums.z) << 16u) | (mean(sums.w) << 24u));
    }
}
