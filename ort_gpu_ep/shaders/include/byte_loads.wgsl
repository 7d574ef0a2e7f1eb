#if PLANES
fn tap_word(tap: u32, top: i32, left: i32, base: i32, padding: u32) -> u32 {
    let dy = i32(tap / WINDOW_X * DILATION_Y);
    let dx = i32(tap % WINDOW_X * DILATION_X);
    if (tap >= WINDOW_Y * WINDOW_X || u32(top + dy) >= HEIGHT || u32(left + dx) >= WIDTH) { return padding; }
    let at = u32(base + dy * i32(WIDTH) + dx);
    var word = u32(x_at(at)) & 0xffu;
#for channel in CHANNELS - 1
    word |= (u32(x_at(at + $(channel + 1)u * HEIGHT * WIDTH)) & 0xffu) << $(8 * channel + 8)u;
#end
    return word ^ X_TURN;
}
#else
fn quad(pixel: u32, channel: u32) -> vec4<u32> {
#if WIDE
    return x_word4(pixel * C4 + channel) ^ vec4<u32>(X_TURN);
#else
    let at = pixel * CW + channel * 4u;
    return vec4<u32>(x_word(at), x_word(min(at + 1u, LAST_WORD)), x_word(min(at + 2u, LAST_WORD)), x_word(min(at + 3u, LAST_WORD)))
        ^ vec4<u32>(X_TURN);
#end
}
#end

#if not POINTWISE
fn windowed(step: u32, kq: u32, top: i32, left: i32, base: i32, padding: u32) -> vec4<u32> {
#if PLANES
    let tap = (step * TQ + kq) * 4u;
    return vec4<u32>(
        tap_word(tap, top, left, base, padding), tap_word(tap + 1u, top, left, base, padding),
        tap_word(tap + 2u, top, left, base, padding), tap_word(tap + 3u, top, left, base, padding));
#else
#include tile_tap.wgsl
    if (!(within && u32(top + dy) < HEIGHT && u32(left + dx) < WIDTH)) { return vec4<u32>(padding); }
    return quad(u32(base + dy * i32(WIDTH) + dx), channel);
#end
}
#end
