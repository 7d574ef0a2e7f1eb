// y[row, c] = sum over taps of x[pixel of the tap, c] * w[tap, c] + bias[c]: a filter a channel, channels together.
// A lane makes four channels of one row (an output pixel of an image).
// Expects: x [image, HEIGHT, WIDTH, C4], w [tap, C4], c? [C4], y [ROWS, C4] as vectors; ROWS C4, and what Window.consts writes.
fn grid_main(group: vec3<u32>, lane: u32) {
#include depthwise_place.wgsl
    var sum = vec4<f32>();
#if HAS_C
    sum = c_at4(channel);
#end
    let base = i32(image * HEIGHT);
#if WINDOW_Y * WINDOW_X <= 25
#for ty in WINDOW_Y
#for tx in WINDOW_X
    {
        let y = top + $(ty * DILATION_Y);
        let x = left + $(tx * DILATION_X);
        if (u32(y) < HEIGHT && u32(x) < WIDTH) {
            sum = fma(x_at4(u32((base + y) * i32(WIDTH) + x) * C4 + channel), w_at4($(ty * WINDOW_X + tx)u * C4 + channel), sum);
        }
    }
#end
#end
#else
    for (var ty = 0u; ty < WINDOW_Y; ty++) {
        for (var tx = 0u; tx < WINDOW_X; tx++) {
            let y = top + i32(ty * DILATION_Y);
            let x = left + i32(tx * DILATION_X);
            if (u32(y) < HEIGHT && u32(x) < WIDTH) {
                sum = fma(x_at4(u32((base + y) * i32(WIDTH) + x) * C4 + channel), w_at4((ty * WINDOW_X + tx) * C4 + channel), sum);
            }
        }
    }
#end
    y_set4(i, sum);
}
