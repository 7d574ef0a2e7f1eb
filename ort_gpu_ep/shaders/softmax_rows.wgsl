// Softmax (KIND 0) or its logarithm (1) of rows whose elements lie together. A subgroup (SUBGROUPS), TEAM invocations or (PER_GROUP 1) a
// workgroup have a row, four elements at a time (FOURS) or one: the first HELD of each stay in registers between the passes.
// Expects: x, y (as vectors of four elements where FOURS), COUNT (rows), UNITS (of a row: vectors or elements), PER_GROUP (rows of a
// workgroup), HELD. Source: ONNX Softmax, LogSoftmax.
#include team.wgsl

#if FOURS
alias Unit = vec4<f32>;
fn load(i: u32) -> Unit { return x_at4(i); }
fn store(i: u32, v: Unit) { y_set4(i, v); }
fn sum_of(v: Unit) -> f32 { return (v.x + v.y) + (v.z + v.w); }
fn top_of(v: Unit) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }
fn power(v: Unit) -> Unit { return vec4<f32>(exp_f32(v.x), exp_f32(v.y), exp_f32(v.z), exp_f32(v.w)); }
#else
alias Unit = f32;
fn load(i: u32) -> Unit { return x_at(i); }
fn store(i: u32, v: Unit) { y_set(i, v); }
fn sum_of(v: Unit) -> f32 { return v; }
fn top_of(v: Unit) -> f32 { return v; }
fn power(v: Unit) -> Unit { return exp_f32(v); }
#end

fn normalize(row: u32, member: u32, team: u32, lane: u32) {
    let start = min(row, COUNT - 1u) * UNITS;
    var top = -inf_f32();
#for h in HELD
    var x$h = Unit();
    if (member + $(h)u * team < UNITS) {
        x$h = load(start + member + $(h)u * team);
        top = max(top, top_of(x$h));
    }
#end
    for (var k = member + $(HELD)u * team; k < UNITS; k += team) { top = max(top, top_of(load(start + k))); }
    top = whole_max(top, lane);
    var sum = Unit();
#for h in HELD
    if (member + $(h)u * team < UNITS) {
        x$h -= top;
#if KIND == 0
        x$h = power(x$h);
        sum += x$h;
#else
        sum += power(x$h);
#end
    }
#end
    for (var k = member + $(HELD)u * team; k < UNITS; k += team) { sum += power(load(start + k) - top); }
    let all = whole_sum(sum_of(sum), lane);
#if KIND == 0
    let factor = 1.0 / all;
#else
    let shift = log_f32(all);
#end
    if (row >= COUNT) { return; }
#for h in HELD
    if (member + $(h)u * team < UNITS) {
#if KIND == 0
        store(start + member + $(h)u * team, x$h * factor);
#else
        store(start + member + $(h)u * team, x$h - shift);
#end
    }
#end
    for (var k = member + $(HELD)u * team; k < UNITS; k += team) {
#if KIND == 0
        store(start + k, power(load(start + k) - top) * factor);
#else
        store(start + k, load(start + k) - top - shift);
#end
    }
}

fn group_main(group: u32, lane: u32) {
#if SUBGROUPS and PER_GROUP > 1
    for (var r = subgroup_id; r < PER_GROUP; r += subgroups) { normalize(group * PER_GROUP + r, subgroup_lane, subgroup_size, lane); }
#else
    normalize(group * PER_GROUP + lane / TEAM, lane % TEAM, TEAM, lane);
#end
}
