// y[row] = finish(fold of prepare(x) over the row). TEAM invocations of a workgroup share a row; a workgroup has WORKGROUP_SIZE / TEAM rows.
// Expects: ROWS, N (row length, at least 1), TEAM (a power of two), ADJACENT (neighbouring invocations take neighbouring rows,
// not elements), the position in x of a row (row_start) and of an element within it (row_step), and what the fold is: FOLD (0 sum,
// 1 product, 2 maximum, 3 minimum), PREPARE (0 x, 1 |x|, 2 x^2, 3 |x|^P), FINISH (0 a, 1 a / COUNT, 2 sqrt a, 3 log a, 4 a^(1/P)).
// PARTS > 1: a row of y is one of PARTS pieces of a longer row, LENGTH elements in all. Sums go through partial sums of 32.
// Source: ONNX Reduce*, Global*Pool.
const PER_GROUP: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> parts: array<x_t, WORKGROUP_SIZE>;

#if PAIRS and X_BITS == 64
fn one() -> x_t { return vec2(1u, 0u); }

fn prepare(v: x_t) -> x_t {
    if (PREPARE == 1u) { return abs_64(v); }
    if (PREPARE == 2u) { return mul_64(v, v); }
    return v;
}

fn join(a: x_t, b: x_t) -> x_t {
    if (FOLD == 0u) { return add_64(a, b); }
    if (FOLD == 1u) { return mul_64(a, b); }
    return select(b, a, less_signed_64(a, b) == (FOLD == 3u));
}

fn finish(a: x_t) -> y_t { return a; }
#else
fn one() -> x_t { return x_t(1); }

fn prepare(v: x_t) -> x_t {
    if (PREPARE == 1u) { return abs(v); }
    if (PREPARE == 2u) { return v * v; }
    if (PREPARE == 3u) {
        var r = abs(v);
        for (var k = 1u; k < P; k++) { r *= abs(v); }
        return r;
    }
    return v;
}

fn join(a: x_t, b: x_t) -> x_t {
    if (FOLD == 0u) { return a + b; }
    if (FOLD == 1u) { return a * b; }
    if (FLOAT && is_nan_f32(f32(a))) { return a; }
    if (FLOAT && is_nan_f32(f32(b))) { return b; }
    if (FOLD == 2u) { return max(a, b); }
    return min(a, b);
}

#if FLOAT and X_BITS == 64
fn finish(a: x_t) -> y_t {
    if (FINISH == 1u) { return a / x_t(COUNT); }
    if (FINISH == 2u) { return sqrt(a); }
    if (FINISH == 3u) { return log_f64(a); }
    return a;
}
#else
fn finish(a: x_t) -> y_t {
#if FLOAT
    if (FINISH == 1u) { return y_t(divide_f32(f32(a), f32(COUNT)).x); }
#else
    if (FINISH == 1u) { return y_t(a / x_t(COUNT)); }
#end
    if (FINISH == 2u) { return y_t(sqrt_f32(f32(a))); }
    if (FINISH == 3u) { return y_t(log_f32(f32(a))); }
    if (FINISH == 4u) { return y_t(select(pow(f32(a), 1.0 / f32(P)), 0.0, f32(a) == 0.0)); }
    return y_t(a);
}
#end
#end

fn group_main(group: u32, lane: u32) {
    let slot = select(lane / TEAM, lane % PER_GROUP, ADJACENT);
    let member = select(lane % TEAM, lane / PER_GROUP, ADJACENT);
    let row = group * PER_GROUP + slot;
    let first = row % PARTS * N;
    let n = select(0u, min(N, max(LENGTH, first) - first), row < ROWS);
    let at = row_start(min(row / PARTS, ROWS / PARTS - 1u));
    var total: x_t;
    if (FOLD == 1u) { total = one(); }
    if (FOLD > 1u && n > 0u) { total = prepare(x_at(at + row_step(first))); }
    var k = member;
    while (k < n) {
        var part = prepare(x_at(at + row_step(first + k)));
        k += TEAM;
        for (var j = 1u; j < 32u && k < n; j++) {
            part = join(part, prepare(x_at(at + row_step(first + k))));
            k += TEAM;
        }
        total = join(total, part);
    }
    let mine = slot * TEAM + member;
    parts[mine] = total;
    for (var s = TEAM / 2u; s > 0u; s /= 2u) {
        workgroupBarrier();
        if (member < s) { parts[mine] = join(parts[mine], parts[mine + s]); }
    }
    if (member == 0u && row < ROWS) { y_set(row, finish(parts[mine])); }
}
