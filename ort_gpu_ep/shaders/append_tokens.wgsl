// y[b, head, row] of [BATCH, HEADS, ROWS, HEAD]: rows of a cache of keys or values, with the SEQUENCE tokens of this step behind those of the steps
// before; or (QUERY) the tokens alone. Tokens may be normalized (NORM: divided by their root mean square, times `weight`) and turned (ROTARY: by
// the angles of their position). One invocation per element.
// Expects: x (tokens: of a batch, a token and the first head at X_BATCH, X_TOKEN, X_FIRST), past? ([BATCH, HEADS, PAST, HEAD]), lengths (of each
// batch: its tokens up to and with this step, less one), cosines? sines? ([COSINES, HALF]), positions? ([BATCH, SEQUENCE]; FIRST: of the first token,
// for all batches), weight? ([HEAD]), y;
// SEQUENCE ROWS HEADS HEAD PAST PART (0: queries, 1: keys, 2: values) TOTAL (tokens of the longest batch), FIRST (no steps before: lengths are of padded batches), HALF (pairs of a head
// that are turned), INTERLEAVED (a pair is two neighbours, else HALF apart), EPSILON.
// Source: GroupQueryAttention of ONNX Runtime (com.microsoft).
#default CODES = 0
#if CODES
// CODES: y and past hold codes of so many bits, see include/cache_codes.wgsl; 4: two to an element.
#end
#include tokens_before.wgsl
#include cache_codes.wgsl

fn token_at(part: u32, i: u32) -> f32 { return x_at(i); }

#if NORM
fn norm_weight(part: u32, d: u32) -> f32 { return weight_at(d); }
#end

fn origin(part: u32, b: u32, token: u32, head: u32) -> u32 { return b * X_BATCH + token * X_TOKEN + X_FIRST + head * HEAD; }

#include token_element.wgsl

#if not CODES
fn element(i: u32) -> y_t {
#include appended_element.wgsl
}
#end
#if CODES
fn appended_code(i: u32) -> f32 {
#include appended_element.wgsl
}

#if HAS_PAST
fn past_code(i: u32) -> f32 {
#if CODES == 8
    return f32(past_at(i));
#else
    return f32((past_at(i / 2u) >> (i % 2u * 4u)) & 15u) - 8.0;
#end
}
#end

fn element(i: u32) -> y_t {
#if CODES == 8
    return y_t(appended_code(i));
#else
    return y_t(appended_code(2u * i) + 8.0) | (y_t(appended_code(2u * i + 1u) + 8.0) << 4u);
#end
}
#end
