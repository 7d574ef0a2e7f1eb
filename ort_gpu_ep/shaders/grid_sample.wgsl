// y[n, c, p] = x[n, c] at the place that grid[n, p] names in [-1, 1], last axis of x first: its nearest element, or a weighted sum of
// 2 (linear) or 4 (cubic) elements along each axis. One invocation per element of y.
// Expects: x, grid, KIND (0 nearest, 1 linear, 2 cubic), PADDING (what lies outside: 0 zeros, 1 border, 2 reflection), ALIGN (-1 and 1
// are the centers of the outermost elements, else their outer edges), CHANNELS, PIXELS (places of an image), RANK (spatial axes, 1 to
// 3), and for each of three axes a (missing ones come first): INa (size, 1 where missing), TAPSa.
// Source: ONNX GridSample. Coordinates are rounded as its reference rounds them: at a tie between two elements, one bit decides.
struct Place { first: i32, weights: vec4<f32> }

// The middle of the first element is 0: where the image begins.
fn begin() -> f32 { return select(-0.5, 0.0, ALIGN); }

fn reflected(x: f32, low: f32, high: f32) -> f32 {
    let range = high - low;
    let beyond = max(low - x, x - high);
    if (range <= 0.0) { return low; }
    if (!(beyond > 0.0)) { return x; }
    let times = floor(divide_f32(beyond, range).x);
    let rest = beyond - times * range;
    let even = times - 2.0 * floor(times * 0.5) == 0.0;
    return select(high - rest, low + rest, (x < low) == even);
}

fn cubic(s: f32) -> vec4<f32> {
    let t = vec4<f32>(1.0 + s, s, 1.0 - s, 2.0 - s);
    let far = ((-0.75 * t + 3.75) * t - 6.0) * t + 3.0;
    let near = (1.25 * t - 2.25) * t * t + 1.0;
    return vec4<f32>(far.x, near.y, near.z, far.w);
}

// A coordinate outside comes inside, and later each element beside it; cubic in images only the elements, as ONNX Runtime and PyTorch
// have it (ONNX's reference moves both).
fn place(g: f32, size: u32) -> Place {
    let length = f32(size);
    let low = begin();
    let high = length - 1.0 - low;
    var x = (apart_f32((g + 1.0) * length) - 1.0) * 0.5;
    if (ALIGN) { x = apart_f32((g + 1.0) * 0.5 * (length - 1.0)); }
    if (KIND == 0u) { x = round(x); }
    if ((x < low || x > high) && !(KIND == 2u && RANK == 2u)) {
        if (PADDING == 1u) { x = clamp(x, 0.0, length - 1.0); }
        if (PADDING == 2u) { x = reflected(x, low, high); }
    }
    if (KIND == 0u) { return Place(i32(x), vec4<f32>(1.0)); }
    let s = x - floor(x);
    if (KIND == 1u) { return Place(i32(floor(x)), vec4<f32>(1.0 - s, s, 0.0, 0.0)); }
    return Place(i32(floor(x)) - 1, cubic(s));
}

// The element that stands at `i` of an axis; -1: none, a zero.
fn element_at(i: i32, size: u32) -> i32 {
    let last = i32(size) - 1;
    if (PADDING == 0u) { return select(-1, i, i >= 0 && i <= last); }
    if (PADDING == 1u) { return clamp(i, 0, last); }
    return clamp(i32(reflected(f32(i), begin(), f32(last) - begin())), 0, last);
}

fn element(i: u32) -> y_t {
    let plane = i / PIXELS;
    let at = (plane / CHANNELS * PIXELS + i % PIXELS) * RANK;
    var p0 = Place(0, vec4<f32>(1.0));
    var p1 = p0;
    let p2 = place(grid_at(at), IN2);
    if (RANK > 1u) { p1 = place(grid_at(at + 1u), IN1); }
    if (RANK > 2u) { p0 = place(grid_at(at + 2u), IN0); }
    let base = plane * IN0 * IN1 * IN2;
    if (KIND == 0u) {
        let e = vec3<i32>(element_at(p0.first, IN0), element_at(p1.first, IN1), element_at(p2.first, IN2));
        if (any(e < vec3<i32>(0))) { return y_t(); }
        return x_at(base + (u32(e.x) * IN1 + u32(e.y)) * IN2 + u32(e.z));
    }
    var sum = 0.0;
    for (var a = 0u; a < TAPS0; a++) {
        let z = element_at(p0.first + i32(a), IN0);
        var layer = 0.0;
        for (var b = 0u; b < TAPS1; b++) {
            let y = element_at(p1.first + i32(b), IN1);
            var line = 0.0;
            for (var c = 0u; c < TAPS2; c++) {
                let x = element_at(p2.first + i32(c), IN2);
                if (min(min(x, y), z) >= 0) { line += p2.weights[c] * f32(x_at(base + (u32(z) * IN1 + u32(y)) * IN2 + u32(x))); }
            }
            layer += p1.weights[b] * line;
        }
        sum += p0.weights[a] * layer;
    }
    return y_t(sum);
}
