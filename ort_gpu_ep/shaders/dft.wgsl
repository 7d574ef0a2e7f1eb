// y[o, k, j] = sum over n of x[o, n, j] e^(-2 pi i k n / N), or with e^(+...) / N (INVERSE): one part, real or imaginary, of a complex
// number by an invocation. Sums go through partial sums of 32.
// Expects: x, twiddles (cosine and sine of each n / N of a turn), N, LENGTH (size of the axis in x: what lies beyond counts as zeros, what
// is beyond N is left out), OUT (its size in y), INNER (numbers between two along it), PARTS and OUT_PARTS (of a number in x and in y: 1,
// real, or 2), INVERSE, HALF (x is the first half of a spectrum whose second half mirrors it). Source: ONNX DFT.
fn element(i: u32) -> y_t {
    let part = i % OUT_PARTS;
    let number = i / OUT_PARTS;
    let k = number / INNER % OUT;
    let first = number / INNER / OUT * LENGTH * INNER + number % INNER;
    let terms = min(LENGTH, select(N, N / 2u + 1u, HALF));
    var total = 0.0;
    var turn = 0u;
    var n = 0u;
    while (n < terms) {
        var sum = 0.0;
        for (var j = 0u; j < 32u && n < terms; j++) {
            let at = (first + n * INNER) * PARTS;
            let c = twiddles_at(2u * turn);
            let s = select(twiddles_at(2u * turn + 1u), -twiddles_at(2u * turn + 1u), INVERSE);
            let real = x_at(at);
            var v = select(real * c, -(real * s), part == 1u);
            if (PARTS == 2u) {
                let imaginary = x_at(at + 1u);
                v += select(imaginary * s, imaginary * c, part == 1u);
            }
            sum += select(v, v + v, HALF && n > 0u && 2u * n < N);
            turn += k;
            turn -= select(0u, N, turn >= N);
            n++;
        }
        total += sum;
    }
    return select(total, total / f32(N), INVERSE);
}
