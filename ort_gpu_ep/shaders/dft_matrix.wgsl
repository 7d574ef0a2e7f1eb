// y[n, p, k, q] = window[n] * what part p (real, imaginary) of a signal's number n adds to part q of number k of its spectrum: a DFT as the
// matrix of a product. One invocation per element.
// Expects: window? (1 where left out), N (length), BINS (numbers of a spectrum), PARTS (of a signal's number: 1, real, or 2).
// Source: ONNX STFT, DFT.
fn element(i: u32) -> y_t {
    let k = i / 2u % BINS;
    let row = i / (2u * BINS);
    let n = row / PARTS;
    // e^(-i turn) = cos - i sin; times i it is sin + i cos.
    let real = row % PARTS == i % 2u;
    var v = sin_of_turn_f32(n * k % N, N, select(0u, 1u, real));
    if (row % PARTS == 0u && i % 2u == 1u) { v = -v; }
    if (HAS_WINDOW) { v *= window_at(n); }
    return v;
}
