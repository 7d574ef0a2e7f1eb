// Element d of a head of token `token` of batch b, normalized and turned as append_tokens.wgsl says, which also says what is expected.
fn turned(from_token: u32, d: u32, factor: f32, position: u32) -> f32 {
    var at = d;
#if NORM
    let v = x_at(from_token + d) * factor * weight_at(d);
#else
    let v = x_at(from_token + d);
#end
#if ROTARY
    if (d < 2u * HALF) {
        let second = select(d >= HALF, (d & 1u) == 1u, INTERLEAVED);
        let apart = select(HALF, 1u, INTERLEAVED);
        at = select(d + apart, d - apart, second);
#if NORM
        let other = x_at(from_token + at) * factor * weight_at(at);
#else
        let other = x_at(from_token + at);
#end
        let pair = min(position, COSINES - 1u) * HALF + select(d % HALF, d / 2u, INTERLEAVED);
        return select(cosines_at(pair) * v - sines_at(pair) * other, cosines_at(pair) * v + sines_at(pair) * other, second);
    }
#end
    return v;
}

fn token_element(b: u32, token: u32, head: u32, d: u32, before: u32) -> f32 {
    let from_token = b * X_BATCH + token * X_TOKEN + X_FIRST + head * HEAD;
    var factor = 1.0;
#if NORM
    var squares = 0.0;
    for (var k = 0u; k < HEAD; k++) { squares = fma(x_at(from_token + k), x_at(from_token + k), squares); }
    factor = 1.0 / sqrt(squares / f32(HEAD) + EPSILON);
#end
    var position = before + token;
#if ROTARY
#if HAS_POSITIONS
    let given = i32(positions_at(b * SEQUENCE + token));
    if (given < 0) { out_of_range(); }
    position = u32(max(given, 0));
#end
    if (position >= COSINES) { out_of_range(); }
#end
    return turned(from_token, d, factor, position);
}
