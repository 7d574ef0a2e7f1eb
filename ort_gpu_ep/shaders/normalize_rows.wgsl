// y = (x - mean) / sqrt(mean d^2 + EPSILON) * scale + bias of each row, with d = x - mean; a row's elements lie together. A subgroup
// (SUBGROUPS), TEAM invocations or (PER_GROUP 1) a workgroup have a row, four elements at a time: the first HELD of each stay in registers
// between the passes. RMS: mean = 0. Scale and bias are vectors of a row's length, or (CHANNELS > 0) one number for PLANE4 vectors: row r has
// those of the channels r % (CHANNELS / PER_ROW) * PER_ROW on, PER_ROW of them.
// EARLY: scale and bias, of a row's length, are read before the row is added up, not behind.
// SKIP: x + skip + added instead of x; SUM: that sum is stored, too.
// Expects: x, scale?, bias?, y (as vectors of four elements; by elements what belongs to channels), COUNT (rows), N4 (vectors of a row),
//   PER_GROUP (rows of a workgroup), HELD, EPSILON, RMS, CHANNELS, PER_ROW, PLANE4; SKIP, SUM: skip (of SKIP_ROWS rows, which repeat), added?
//   (a row), total (all as vectors).
// Source: ONNX LayerNormalization, RMSNormalization, InstanceNormalization, GroupNormalization; ONNX Runtime's SkipLayerNormalization,
// SkipSimplifiedLayerNormalization.
#include team.wgsl

#if SKIP
fn of_row(row: u32, k: u32) -> vec4<f32> {
    var v = x_at4(row * N4 + k) + skip_at4(row % SKIP_ROWS * N4 + k);
#if HAS_ADDED
    v += added_at4(k);
#end
    return v;
}
#else
fn of_row(row: u32, k: u32) -> vec4<f32> { return x_at4(row * N4 + k); }
#end

fn sum_of(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }

fn normalize(row: u32, member: u32, team: u32, lane: u32) {
    let from_row = min(row, COUNT - 1u);
    var sum = vec4<f32>();
#for h in HELD
    var x$h = vec4<f32>();
    if (member + $(h)u * team < N4) {
        x$h = of_row(from_row, member + $(h)u * team);
#if SUM
        if (row < COUNT) { total_set4(row * N4 + member + $(h)u * team, x$h); }
#end
    }
    sum += x$h;
#end
#if SUM
    if (row < COUNT) {
        for (var k = member + $(HELD)u * team; k < N4; k += team) { total_set4(row * N4 + k, of_row(row, k)); }
    }
#end
#if EARLY
#for h in HELD
    let scale$h = scale_at4(min(member + $(h)u * team, N4 - 1u));     // under way while the row is added up
#if HAS_BIAS
    let bias$h = bias_at4(min(member + $(h)u * team, N4 - 1u));
#end
#end
#end
#if RMS
    let mean = 0.0;
#else
    for (var k = member + $(HELD)u * team; k < N4; k += team) { sum += of_row(from_row, k); }
    let mean = whole_sum(sum_of(sum), lane) / f32(4u * N4);
#end
    var squares = vec4<f32>();
#for h in HELD
    if (member + $(h)u * team < N4) {
        x$h -= mean;
        squares = fma(x$h, x$h, squares);
    }
#end
    for (var k = member + $(HELD)u * team; k < N4; k += team) {
        let d = of_row(from_row, k) - mean;
        squares = fma(d, d, squares);
    }
    let scale = 1.0 / sqrt(whole_sum(sum_of(squares), lane) / f32(4u * N4) + EPSILON);
    if (row >= COUNT) { return; }
#for h in HELD
#if EARLY
#if HAS_BIAS
    x$h = fma(x$h * scale, scale$h, bias$h);
#else
    x$h *= scale * scale$h;
#end
    if (member + $(h)u * team < N4) { y_set4(row * N4 + member + $(h)u * team, x$h); }
#else
    if (member + $(h)u * team < N4) { store(row, member + $(h)u * team, x$h * scale); }
#end
#end
    for (var k = member + $(HELD)u * team; k < N4; k += team) { store(row, k, (of_row(row, k) - mean) * scale); }
}

#include normalized.wgsl

fn group_main(group: u32, lane: u32) {
#if SUBGROUPS and PER_GROUP > 1
    for (var r = subgroup_id; r < PER_GROUP; r += subgroups) { normalize(group * PER_GROUP + r, subgroup_lane, subgroup_size, lane); }
#else
    normalize(group * PER_GROUP + lane / TEAM, lane % TEAM, TEAM, lane);
#end
}
