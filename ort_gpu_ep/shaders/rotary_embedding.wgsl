// y = x with each of HALF pairs of a head's elements turned by an angle of the token, the other elements as they are. One invocation
// per element.
// Expects: x, cosines and sines (ROWS x HALF), positions (if POSITIONS), HEAD (elements of a head), INTERLEAVED (a pair is two neighbours, else HALF
// apart), and for an element of x `step` and `place`: its row of cosines and sines is step + positions[place] (0 where left out), which
// counts from the end where negative, and is clamped; onnxruntime refuses both, so that they are noted. Source: ONNX RotaryEmbedding.
fn element(i: u32) -> y_t {
    let d = i % HEAD;
    if (d >= 2u * HALF) { return x_at(i); }
    var row = i32(step(i));
#if POSITIONS
    let position = positions_pair(place(i));      // of which a row takes the low one
    row += bitcast<i32>(position.x);
    if (bitcast<i32>(position.y) != bitcast<i32>(position.x) >> 31u || abs(bitcast<i32>(position.x)) > 1073741824) { out_of_range(); }
#end
    if (row < 0 || row >= i32(ROWS)) { out_of_range(); }
    row = clamp(select(row, row + i32(ROWS), row < 0), 0, i32(ROWS) - 1);
    let second = select(d >= HALF, (d & 1u) == 1u, INTERLEAVED);
    let apart = select(HALF, 1u, INTERLEAVED);
    let first = select(i, i - apart, second);
    let pair = select(d % HALF, d / 2u, INTERLEAVED);
    let at = u32(row) * HALF + pair;
    let real = x_at(first);
    let imaginary = x_at(first + apart);
    if (second) { return sines_at(at) * real + cosines_at(at) * imaginary; }
    return cosines_at(at) * real - sines_at(at) * imaginary;
}
