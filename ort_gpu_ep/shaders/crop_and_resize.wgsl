// y[r, c, p] = x[batch[r], c] at the place of p in region r: between four elements, or the nearest one; OUTSIDE beyond the image.
// Expects: x, rois [regions, 4] (y and x of the first corner, then of the last, as parts of the image), batch (32 bits), IMAGES, CHANNELS,
// HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, NEAREST, OUTSIDE. One invocation per element of y.
// Source: CropAndResize of ONNX Runtime, crop_and_resize.cc. A place may be anything that data bring.
fn place(low: f32, high: f32, number: u32, count: u32, size: u32) -> f32 {
    let last = f32(size - 1u);
    if (count == 1u) { return 0.5 * (low + high) * last; }
    return apart_f32(low * last) + apart_f32(f32(number) * divide_f32((high - low) * last, f32(count - 1u)).x);
}

fn element(i: u32) -> y_t {
    let region = i / (OUT_WIDTH * OUT_HEIGHT * CHANNELS);
    let image = batch_at(region);
    if (image < 0 || image >= i32(IMAGES)) { out_of_range(); }
    let plane = (u32(clamp(image, 0, i32(IMAGES) - 1)) * CHANNELS + i / (OUT_WIDTH * OUT_HEIGHT) % CHANNELS) * HEIGHT;
    let y = place(rois_at(4u * region), rois_at(4u * region + 2u), i / OUT_WIDTH % OUT_HEIGHT, OUT_HEIGHT, HEIGHT);
    let x = place(rois_at(4u * region + 1u), rois_at(4u * region + 3u), i % OUT_WIDTH, OUT_WIDTH, WIDTH);
    if (!(y >= 0.0 && x >= 0.0 && y <= f32(HEIGHT - 1u) && x <= f32(WIDTH - 1u))) { return OUTSIDE; }
    if (NEAREST) { return x_at((plane + min(u32(floor(0.5 + y)), HEIGHT - 1u)) * WIDTH + min(u32(floor(0.5 + x)), WIDTH - 1u)); }
    let y0 = min(u32(y), HEIGHT - 1u);
    let x0 = min(u32(x), WIDTH - 1u);
    let y1 = min(y0 + 1u, HEIGHT - 1u);
    let x1 = min(x0 + 1u, WIDTH - 1u);
    let v = y - f32(y0);
    let u = x - f32(x0);
    let top = between(x_at((plane + y0) * WIDTH + x0), x_at((plane + y0) * WIDTH + x1), u);
    let bottom = between(x_at((plane + y1) * WIDTH + x0), x_at((plane + y1) * WIDTH + x1), u);
    return between(top, bottom, v);
}

fn between(a: f32, b: f32, t: f32) -> f32 { return a + (b - a) * t; }
