// y = (x - mean) / sqrt(mean d^2 + EPSILON) * scale + bias of each row, with d = x - mean; a row's elements lie together, and scale and bias
// are vectors of its length. A subgroup (SUBGROUPS) or TEAM invocations have a row, four elements at a time: the first HELD of each stay in
// registers between the passes. RMS: mean = 0.
// Expects: x, scale?, bias?, y (as vectors of four elements), COUNT (rows), N4 (vectors of a row), PER_GROUP (rows of a workgroup), HELD,
//   EPSILON, RMS. Source: ONNX LayerNormalization, RMSNormalization.
const TEAM: u32 = WORKGROUP_SIZE / PER_GROUP;
#if not SUBGROUPS
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;
#end

fn whole(v: f32, lane: u32) -> f32 {
#if SUBGROUPS
    return subgroupAdd(v);
#else
    workgroupBarrier();
    parts[lane] = v;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (lane % TEAM < s) { parts[lane] += parts[lane + s]; }
    }
    workgroupBarrier();
    return parts[lane - lane % TEAM];
#end
}

fn sum_of(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }

fn normalize(row: u32, member: u32, team: u32, lane: u32) {
    let start = min(row, COUNT - 1u) * N4;
    var sum = vec4<f32>();
#for h in HELD
    var x$h = vec4<f32>();
    if (member + $(h)u * team < N4) { x$h = x_at4(start + member + $(h)u * team); }
    sum += x$h;
#end
#if RMS
    let mean = 0.0;
#else
    for (var k = member + $(HELD)u * team; k < N4; k += team) { sum += x_at4(start + k); }
    let mean = whole(sum_of(sum), lane) / f32(4u * N4);
#end
    var squares = vec4<f32>();
#for h in HELD
    if (member + $(h)u * team < N4) {
        x$h -= mean;
        squares = fma(x$h, x$h, squares);
    }
#end
    for (var k = member + $(HELD)u * team; k < N4; k += team) {
        let d = x_at4(start + k) - mean;
        squares = fma(d, d, squares);
    }
    let scale = 1.0 / sqrt(whole(sum_of(squares), lane) / f32(4u * N4) + EPSILON);
    if (row >= COUNT) { return; }
#for h in HELD
    if (member + $(h)u * team < N4) { store(start, member + $(h)u * team, x$h * scale); }
#end
    for (var k = member + $(HELD)u * team; k < N4; k += team) { store(start, k, (x_at4(start + k) - mean) * scale); }
}

fn store(start: u32, k: u32, normal: vec4<f32>) {
    var v = normal;
#if HAS_SCALE
    v *= scale_at4(k);
#end
#if HAS_BIAS
    v += bias_at4(k);
#end
    y_set4(start + k, v);
}

fn group_main(group: u32, lane: u32) {
#if SUBGROUPS
    for (var r = subgroup_id; r < PER_GROUP; r += subgroups) { normalize(group * PER_GROUP + r, subgroup_lane, subgroup_size, lane); }
#else
    normalize(group * PER_GROUP + lane / TEAM, lane % TEAM, TEAM, lane);
#end
}
