// y[r, c, p] = the mean, or the largest, of what x[batch[r], c] has at points between its elements: those of bin p of region r.
// Expects: x, rois [regions, 4] (x and y of the first corner, then of the last), batch (32 or 64 bits), IMAGES, CHANNELS, HEIGHT, WIDTH,
// OUT_HEIGHT, OUT_WIDTH, SCALE (from a region's places to those of x), HALF_PIXEL, SAMPLING (points of a bin along an axis; 0: as many as
// it has elements of x), MAX. One invocation per element of y.
// Source: ONNX RoiAlign; the points that don't count, onnxruntime, roialign.cc. A place may be anything that data bring.
struct Bin { first: f32, step: f32, points: f32, begin: i32, end: i32 }
struct Tap { low: u32, high: u32, part: f32, outside: bool }

// The points of one bin of an axis of x, from `begin` to `end` those that may lie on x: beyond it they are zeros.
fn bin_of(low: f32, high: f32, number: u32, bins: u32, size: u32) -> Bin {
    let offset = select(0.0, 0.5, HALF_PIXEL);
    let start = apart_f32(low * SCALE) - offset;
    var length = apart_f32(high * SCALE) - offset - start;
    if (!HALF_PIXEL) { length = max(length, 1.0); }
    let width = divide_f32(length, f32(bins)).x;
    let points = select(ceil(width), f32(SAMPLING), SAMPLING > 0u);
    let step = divide_f32(width, max(points, 1.0)).x;
    let first = start + f32(number) * width + 0.5 * step;
    if (!(points >= 1.0)) { return Bin(first, step, 0.0, 0, 0); }
    let most = i32(min(points, 1e9));
    var begin = 0;
    var end = most;
    if (SAMPLING == 0u && step > 0.0) {
        begin = i32(clamp(floor((-1.0 - first) / step), 0.0, f32(most)));
        end = min(i32(clamp(ceil((f32(size) - first) / step) + 1.0, 0.0, f32(most))), begin + 2 * i32(size) + 6);
    }
    return Bin(first, step, points, begin, end);
}

fn tap_at(bin: Bin, k: i32, size: u32) -> Tap {
    let place = bin.first + f32(k) * bin.step;
    let last = size - 1u;
    if (!(place >= -1.0 && place <= f32(size))) { return Tap(0u, 0u, 0.0, true); }
    let low = min(u32(max(place, 0.0)), last);
    return Tap(low, min(low + 1u, last), select(max(place, 0.0) - f32(low), 0.0, low == last), false);
}

fn element(i: u32) -> y_t {
    let region = i / (OUT_WIDTH * OUT_HEIGHT * CHANNELS);
    let words = batch_pair(region);
    let image = bitcast<i32>(words.x);
    if (image < 0 || image >= i32(IMAGES) || words.y != 0u) { out_of_range(); }
    let plane = (u32(clamp(image, 0, i32(IMAGES) - 1)) * CHANNELS + i / (OUT_WIDTH * OUT_HEIGHT) % CHANNELS) * HEIGHT;
    let across = bin_of(rois_at(4u * region), rois_at(4u * region + 2u), i % OUT_WIDTH, OUT_WIDTH, WIDTH);
    let down = bin_of(rois_at(4u * region + 1u), rois_at(4u * region + 3u), i / OUT_WIDTH % OUT_HEIGHT, OUT_HEIGHT, HEIGHT);
    var sum = 0.0;
    var most = bitcast<f32>(0xff7fffffu);
    var met = 0.0;
    for (var ky = down.begin; ky < down.end; ky++) {
        let y = tap_at(down, ky, HEIGHT);
        if (y.outside) { continue; }
        var line = 0.0;
        for (var kx = across.begin; kx < across.end; kx++) {
            let x = tap_at(across, kx, WIDTH);
            if (x.outside) { continue; }
            met += 1.0;
            let a = (1.0 - y.part) * (1.0 - x.part) * x_at((plane + y.low) * WIDTH + x.low);
            let b = (1.0 - y.part) * x.part * x_at((plane + y.low) * WIDTH + x.high);
            let c = y.part * (1.0 - x.part) * x_at((plane + y.high) * WIDTH + x.low);
            let d = y.part * x.part * x_at((plane + y.high) * WIDTH + x.high);
            line += (a + b) + (c + d);
            if (MAX) { most = max(most, max(max(a, b), max(c, d))); }
        }
        sum += line;
    }
    let points = down.points * across.points;
    if (!MAX) { return sum / max(points, 1.0); }
    return select(most, max(most, 0.0), met < points) * select(0.0, 1.0, points > 0.0);
}
