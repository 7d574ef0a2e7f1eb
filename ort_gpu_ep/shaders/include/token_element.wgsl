// Element d of a head of token `token` of batch b: of queries (part 0) and keys (1) normalized and turned as append_tokens.wgsl says, which also
// says what is expected; of values (2) as it is. Expects: token_at(part, i), norm_weight(part, d) where NORM, origin(part, b, token, head).
#include token_position.wgsl

fn turned(part: u32, from_token: u32, d: u32, factor: f32, position: u32) -> f32 {
    var at = d;
#if NORM
    let v = token_at(part, from_token + d) * factor * norm_weight(part, d);
#else
    let v = token_at(part, from_token + d);
#end
#if ROTARY
    if (d < 2u * HALF) {
        let second = select(d >= HALF, (d & 1u) == 1u, INTERLEAVED);
        let apart = select(HALF, 1u, INTERLEAVED);
        at = select(d + apart, d - apart, second);
#if NORM
        let other = token_at(part, from_token + at) * factor * norm_weight(part, at);
#else
        let other = token_at(part, from_token + at);
#end
        let pair = min(position, COSINES - 1u) * HALF + select(d % HALF, d / 2u, INTERLEAVED);
        return select(cosines_at(pair) * v - sines_at(pair) * other, cosines_at(pair) * v + sines_at(pair) * other, second);
    }
#end
    return v;
}

fn token_element(part: u32, b: u32, token: u32, head: u32, d: u32, before: u32) -> f32 {
    let from_token = origin(part, b, token, head);
    if (part == 2u) { return token_at(part, from_token + d); }
    var factor = 1.0;
#if NORM
    var squares = 0.0;
    for (var k = 0u; k < HEAD; k++) { squares = fma(token_at(part, from_token + k), token_at(part, from_token + k), squares); }
    factor = 1.0 / sqrt(squares / f32(HEAD) + EPSILON);
#end
    return turned(part, from_token, d, factor, token_position(b, token, before));
}
