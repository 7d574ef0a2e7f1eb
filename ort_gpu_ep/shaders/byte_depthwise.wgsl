// y[row, c] = the byte of the sum over taps of x[pixel of the tap, c] * w[tap, c]: a filter a channel, channels together, four in a word.
// A lane makes four channels of one row (an output pixel of an image).
// Expects: x [image, HEIGHT, WIDTH, C4] words, w [tap, C4] words, numbers (quantized_outputs.wgsl) as vectors, y [ROWS, C4] words; ROWS C4,
// X_TURN (turns unsigned bytes into signed ones), LOW HIGH, and what Window.consts writes.
#include requantized.wgsl

fn grid_main(group: vec3<u32>, lane: u32) {
#include depthwise_place.wgsl
    let base = i32(image * HEIGHT);
    let last = numbers_word4(2u * C4);
    var sum = bitcast<vec4<i32>>(numbers_word4(channel));
    for (var ty = 0u; ty < WINDOW_Y; ty++) {
        for (var tx = 0u; tx < WINDOW_X; tx++) {
            let y = top + i32(ty * DILATION_Y);
            let x = left + i32(tx * DILATION_X);
            var word = last.y;
            if (u32(y) < HEIGHT && u32(x) < WIDTH) { word = x_word(u32((base + y) * i32(WIDTH) + x) * C4 + channel) ^ X_TURN; }
            sum += unpack4xI8(word) * unpack4xI8(w_at((ty * WINDOW_X + tx) * C4 + channel));
        }
    }
    let scale = bitcast<vec4<f32>>(numbers_word4(C4 + channel));
    let zero = bitcast<f32>(last.x);
    y_set_word(i, requantized(sum, scale, zero));
}
