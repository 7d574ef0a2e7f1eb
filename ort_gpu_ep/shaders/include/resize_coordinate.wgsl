fn coordinate(o: f32, scale: f32, size: f32, out: f32, start: f32, width: f32, center: f32) -> f32 {
    if ((COORDINATES == 2u || COORDINATES == 4u) && out == 1.0) { return 0.0; }
    if (COORDINATES == 5u && out == 1.0) { return center; }
    switch COORDINATES {
        case 1u: { return divide_f32(o, scale).x; }                                            // asymmetric
        case 3u: { return divide_f32(o + 0.5, scale).x; }                                      // tf_half_pixel_for_nn
        case 4u: { return divide_f32(o * (size - 1.0), max(out - 1.0, 1.0)).x; }               // align_corners
        case 5u: { return start + divide_f32(apart_f32(o * width) * (size - 1.0), max(out - 1.0, 1.0)).x; }   // tf_crop_and_resize
        case 6u: {                                                                         // half_pixel_symmetric, in float64 there
            let q = divide_f32(o + 0.5, scale);
            return apart_f32(q.x + start) + apart_f32(q.y + width);
        }
        default: { return divide_f32(o + 0.5, scale).x - 0.5; }                                // half_pixel, pytorch_half_pixel
    }
}
