// y[c] = x[c - BEGIN], an invocation per element of y; outside of x: `value`, or x reflected, clamped or repeated (MODE).
// Expects: x, value (one element, read if GIVEN; else BITS is the element), RANK, and for each dimension k < RANK of the
// merged shape BEGINk (negative: cropped), INk and OUTk (sizes in x and y).
// Source: ONNX Pad; `reflect` beyond the far side goes back and forth, as numpy.pad does.
const BEGINS = array<i32, 8>(
    i32(BEGIN0), i32(BEGIN1), i32(BEGIN2), i32(BEGIN3), i32(BEGIN4), i32(BEGIN5), i32(BEGIN6), i32(BEGIN7));
const IN = array<i32, 8>(i32(IN0), i32(IN1), i32(IN2), i32(IN3), i32(IN4), i32(IN5), i32(IN6), i32(IN7));
const OUT = array<u32, 8>(OUT0, OUT1, OUT2, OUT3, OUT4, OUT5, OUT6, OUT7);

// The place in a dimension of n elements that c stands for, -1 for none.
fn place(c: i32, n: i32) -> i32 {
    if (c >= 0 && c < n) { return c; }
    if (MODE == 0u) { return -1; }
    if (MODE == 2u) { return clamp(c, 0, n - 1); }
    if (MODE == 3u) { return modulo_i32(c, n); }
    let period = max(2 * (n - 1), 1);
    let r = modulo_i32(c, period);
    return min(min(r, period - r), n - 1);
}

fn element(i: u32) -> y_t {
    var rest = i;
    var at = 0u;
    var stride = 1u;
    var inside = true;
    for (var k = RANK; k > 0u; k--) {
        let c = i32(rest % OUT[k - 1u]) - BEGINS[k - 1u];
        rest /= OUT[k - 1u];
        let p = place(c, IN[k - 1u]);
        inside = inside && p >= 0;
        at += u32(max(p, 0)) * stride;
        stride *= u32(IN[k - 1u]);
    }
    if (inside) { return x_at(at); }
    if (GIVEN) { return y_t(value_at(0u)); }
    return y_t(BITS);
}
