// Functions that any body or fused expression may call. The composer includes those that are called.
// Drivers may drop two-term error compensation, leave fma() unfused and assume that there is no NaN: so splits are made by
// bit masks, and NaN is tested by its bits. Constants live inside functions: the composer picks single functions from this file.
// Source: Cephes (single precision), FreeBSD msun (log1p, pow), N. Juffa (erf). Errors in ulp are measured against float64.

// Infinity and NaN: WGSL has no literals for them and rejects constant expressions that make them.
fn inf_f32() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn nan_f32() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }
fn is_nan_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_inf_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }

// NaN where an argument is NaN, as numpy does it.
fn max_f32(x: f32, y: f32) -> f32 { return select(max(x, y), nan_f32(), is_nan_f32(x) || is_nan_f32(y)); }
fn min_f32(x: f32, y: f32) -> f32 { return select(min(x, y), nan_f32(), is_nan_f32(x) || is_nan_f32(y)); }
fn clamp_f32(x: f32, low: f32, high: f32) -> f32 { return select(min(max(x, low), high), x, is_nan_f32(x)); }

fn copysign_f32(size: f32, sign: f32) -> f32 { return bitcast<f32>((bitcast<u32>(size) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u)); }
// The 12 leading bits of the significand: the product of two such numbers is exact.
fn head_f32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }
// x: n / d, rounded correctly. y: what rounding took away. WGSL allows a division an error of 2.5 ULP, so the remainder is computed
// exactly (products of halves of a mantissa are exact), and the quotient is moved by whole ULPs, as an integer. At the ends of the
// range, where an intermediate could leave it, x is the plain division.
fn divide_f32(n: f32, d: f32) -> vec2<f32> {
    let q = n / d;
    if (!(abs(q) > 1e-30 && abs(q) < 1e30 && abs(d) > 1e-30 && abs(d) < 1e30)) { return vec2<f32>(q, 0.0); }
    let q_head = head_f32(q);
    let d_head = head_f32(d);
    let q_tail = q - q_head;
    let d_tail = d - d_head;
    let remainder = ((n - q_head * d_head) - q_head * d_tail) - q_tail * d_head - q_tail * d_tail;
    let bits = bitcast<i32>(q);
    let unit = abs(d) * bitcast<f32>((bits & 0x7f800000) - (23 << 23u)) * sign(q) * sign(d);
    let steps = round(remainder / unit);
    return vec2<f32>(bitcast<f32>(bits + i32(steps)), (remainder - steps * unit) / d);
}
fn reciprocal_f32(x: f32) -> f32 { return divide_f32(1.0, x).x; }
fn reciprocal_f64(x: f64) -> f64 { return 1.0lf / x; }
// The root, as the CPU has it wherever WGSL's own is off by a few ULPs: moved by whole ULPs, by what its square, computed exactly as in
// divide_f32, lacks. One that is rounded correctly stays.
fn sqrt_f32(x: f32) -> f32 {
    let r = sqrt(x);
    if (!(x > 1e-20 && x < 1e38)) { return r; }
    let head = head_f32(r);
    let tail = r - head;
    let remainder = ((x - head * head) - 2.0 * head * tail) - tail * tail;
    let bits = bitcast<i32>(r);
    let unit = 2.0 * r * bitcast<f32>((bits & 0x7f800000) - (23 << 23u));
    return bitcast<f32>(bits + i32(round(remainder / unit * 0.999999)));
}
fn sqrt_f64(x: f64) -> f64 { return sqrt(x); }
// x as float16 has it: rounded to the nearest, of two as near to the even one, and infinite beyond its range. A driver's own conversion may
// round another way.
fn half_f32(x: f32) -> f32 {
    let unit = max(bitcast<u32>(x) & 0x7f800000u, 113u << 23u) - (10u << 23u);
    let rounded = round(x * bitcast<f32>((254u << 23u) - unit)) * bitcast<f32>(unit);
    return select(rounded, x * inf_f32(), abs(x) >= 65520.0);
}
// n m + c, rounded once (but for a half of an ulp that is off by less than 2^-24 of it), of a whole number n of at most 12 bits: its products
// with the halves of a mantissa are exact, and what is lost in the sum is added in the end.
fn fma_of_byte_f32(n: f32, m: f32, c: f32) -> f32 {
    let m_head = head_f32(m);
    let product = n * m_head;
    let sum = product + c;
    let back = sum - product;
    return sum + ((product - (sum - back)) + (c - back) + n * (m - m_head));
}
// x mod n for n > 0, never negative. (Vulkan leaves the sign of % open where an operand is negative.)
fn modulo_i32(x: i32, n: i32) -> i32 {
    let rest = x - x / n * n;
    return select(rest, rest + n, rest < 0);
}
// x 2^n for |n| <= 250, in two factors.
fn scale_f32(x: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}

// e^r - 1 for |r| <= 0.35.
fn exp_tail_f32(r: f32) -> f32 {
    let p = ((((1.9875691500e-4 * r + 1.3981999507e-3) * r + 8.3334519073e-3) * r + 4.1665795894e-2) * r + 1.6666665459e-1) * r + 5.0000001201e-1;
    return p * (r * r) + r;
}
// e^x 2^n.
fn exp_scaled_f32(x: f32, n: i32) -> f32 {
    let k = round(clamp(x, -104.0, 90.0) * 1.44269504);
    let r = (x - k * 0.693359375) + k * 2.12194440e-4;
    return select(scale_f32(1.0 + exp_tail_f32(r), i32(k) + n), 0.0, x < -104.0);
}
fn exp_f32(x: f32) -> f32 { return exp_scaled_f32(x, 0); }
fn expm1_f32(x: f32) -> f32 { return select(exp_scaled_f32(x, 0) - 1.0, exp_tail_f32(x), abs(x) < 0.34); }

// log(1 + f) + k log 2 for 1 + f between sqrt(1/2) and sqrt(2).
fn log_sum_f32(f: f32, k: f32) -> f32 {
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * (0.66666662693 + z * (0.40000972152 + z * (0.28498786688 + z * 0.24279078841)));
    let h = 0.5 * f * f;
    return k * 0.69313812256 + ((s * (h + r) + k * 9.0580006145e-6) - h + f);
}
fn log_f32(x: f32) -> f32 {
    let tiny = x < 1.17549435e-38;
    let i = bitcast<i32>(select(x, x * 8388608.0, tiny)) - 0x3f3504f3;
    let f = bitcast<f32>((i & 0x7fffff) + 0x3f3504f3) - 1.0;
    let y = log_sum_f32(f, f32((i >> 23u) - select(0, 23, tiny)));
    return select(select(y, x, is_nan_f32(x) || x == inf_f32()), select(nan_f32(), -inf_f32(), x == 0.0), x <= 0.0);
}
fn log1p_f32(x: f32) -> f32 { return select(log_f32(1.0 + x), log_sum_f32(x, 0.0), x > -0.29 && x < 0.41); }

fn sigmoid_f32(x: f32) -> f32 { return 1.0 / (1.0 + exp_f32(-x)); }
fn softplus_f32(x: f32) -> f32 { return select(x, 0.0, x < 0.0) + log1p_f32(exp_f32(-abs(x))); }
fn tanh_f32(x: f32) -> f32 {
    let z = x * x;
    let p = ((((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z - 3.33332819422e-1) * z * x + x;
    return select(copysign_f32(1.0 - 2.0 / (exp_f32(2.0 * abs(x)) + 1.0), x), p, abs(x) < 0.625);
}
// x tanh(log(1 + e^x)), with tanh(log(1 + e)) = (e^2 + 2 e) / (e^2 + 2 e + 2).
fn mish_f32(x: f32) -> f32 {
    let e = exp_f32(select(x, 20.0, x > 20.0));
    let n = e * (e + 2.0);
    return x * (n / (n + 2.0));
}
fn erf_f32(x: f32) -> f32 {
    let t = abs(x);
    let s = x * x;
    var p = (-1.72853470e-5 * t + 3.83197126e-4) * s + (-3.88396438e-3 * t + 2.42546219e-2);
    p = (((p * t - 1.06777877e-1) * t - 6.34846687e-1) * t - 1.28717512e-1) * t - t;
    var q = ((((-5.96761703e-4 * s + 4.99119423e-3) * s - 2.67681349e-2) * s + 1.12819925e-1) * s - 3.76125336e-1) * s + 1.28379166e-1;
    return select(copysign_f32(1.0 - exp_f32(p), x), q * x + x, t < 0.92773438);
}
fn sinh_f32(x: f32) -> f32 {
    let z = x * x;
    let h = exp_scaled_f32(abs(x), -1);
    return select(copysign_f32(h - 0.25 / h, x), ((2.03721912945e-4 * z + 8.33028376239e-3) * z + 1.66667160211e-1) * z * x + x, abs(x) < 1.0);
}
fn cosh_f32(x: f32) -> f32 {
    let h = exp_scaled_f32(abs(x), -1);
    return h + 0.25 / h;
}
fn asinh_f32(x: f32) -> f32 {
    let t = abs(x);
    return copysign_f32(select(log1p_f32(t + t * t / (1.0 + sqrt(1.0 + t * t))), log_f32(t) + 0.69314718, t > 1e9), x);
}
fn acosh_f32(x: f32) -> f32 {
    let u = x - 1.0;
    return select(log1p_f32(u + sqrt(u) * sqrt(x + 1.0)), log_f32(x) + 0.69314718, x > 1e9);
}
fn atanh_f32(x: f32) -> f32 { return copysign_f32(0.5 * log1p_f32(2.0 * abs(x) / (1.0 - abs(x))), x); }
fn atan_f32(x: f32) -> f32 {
    let t = abs(x);
    let big = t > 2.41421356;
    let middle = t > 0.41421356;
    let a = select(select(t, (t - 1.0) / (t + 1.0), middle), -1.0 / t, big);
    let z = a * a;
    let p = (((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1) * z * a + a;
    return copysign_f32(p + select(select(0.0, 0.785398163, middle), 1.57079633, big), x);
}
// asin(a) for 0 <= a <= 1/2, z = a^2.
fn asin_sum_f32(a: f32, z: f32) -> f32 {
    return ((((4.2163199048e-2 * z + 2.4181311049e-2) * z + 4.5470025998e-2) * z + 7.4953002686e-2) * z + 1.6666752422e-1) * z * a + a;
}
fn asin_f32(x: f32) -> f32 {
    let t = abs(x);
    let z = 0.5 * (1.0 - t);
    return copysign_f32(select(asin_sum_f32(t, t * t), 1.57079633 - 2.0 * asin_sum_f32(sqrt(z), z), t > 0.5), x);
}
fn acos_f32(x: f32) -> f32 {
    let t = abs(x);
    let z = 0.5 * (1.0 - t);
    let a = 2.0 * asin_sum_f32(sqrt(z), z);
    return select(1.57079633 - asin_sum_f32(x, x * x), select(a, 3.14159265 - a, x < 0.0), t > 0.5);
}

// The upper half of the 64-bit product.
fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let m = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let n = (a & 0xffffu) * (b >> 16u) + (m & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (m >> 16u) + (n >> 16u);
}
// x mod pi/2 in [-pi/4, pi/4] and the quadrant, for finite x >= 0: Cody and Waite in three parts, or Payne and Hanek with 96
// of the digits of 2/pi.
fn quadrant_f32(x: f32) -> vec2<f32> {
    if (x < 1024.0) {
        let k = round(x * 0.636619772);
        return vec2(((x - k * 1.5703125) - k * 4.837512969970703125e-4) - k * 7.54978995489188e-8, k);
    }
    var digits = array(0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0u);
    let bits = bitcast<u32>(x);
    let significand = (bits << 8u) | 0x80000000u;
    let exponent = (bits >> 23u) - 126u;
    let at = exponent >> 5u;
    let by = exponent & 31u;
    let d = vec4(digits[at], digits[at + 1u], digits[at + 2u], digits[at + 3u]);
    let w = select((d.xyz << vec3(by)) | (d.yzw >> vec3(32u - max(by, 1u))), d.xyz, by == 0u);
    let middle = significand * w.y;
    let low = middle + high_product(significand, w.z);
    let high = significand * w.x + high_product(significand, w.y) + select(0u, 1u, low < middle);
    let quadrant = (high + 0x20000000u) >> 30u;
    let rest = high - (quadrant << 30u);
    let negative = (rest & 0x80000000u) != 0u;
    let size = f32(select(rest, ~rest, negative)) * 9.31322575e-10 + f32(select(low, ~low, negative)) * 2.16840434e-19;
    return vec2(1.57079633 * select(size, -size, negative), f32(quadrant));
}
// sin(x + turns pi/2).
fn sin_turned_f32(x: f32, turns: u32) -> f32 {
    let q = quadrant_f32(select(abs(x), 0.0, (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u));
    let a = copysign_f32(1.0, x) * q.x;
    let k = select(u32(q.y), 4u - (u32(q.y) & 3u), x < 0.0) + turns;
    let z = a * a;
    let s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * a + a;
    let c = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
    let y = select(s, c, (k & 1u) == 1u);
    return select(select(y, -y, (k & 2u) == 2u), nan_f32(), (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u);
}
// sin(2 pi r / n + turns pi/2), for r <= 2 n < 2^28: the nearest quarter is taken off as an integer, so that the angle is exact to a
// rounding wherever it lies.
fn sin_of_turn_f32(r: u32, n: u32, turns: u32) -> f32 {
    let quarter = (8u * r + n) / (2u * n);
    return sin_turned_f32(1.57079633 * (f32(i32(4u * r) - i32(quarter * n)) / f32(n)), quarter + turns);
}
fn sin_f32(x: f32) -> f32 { return sin_turned_f32(x, 0u); }
fn cos_f32(x: f32) -> f32 { return sin_turned_f32(x, 1u); }
fn tan_f32(x: f32) -> f32 { return sin_turned_f32(x, 0u) / sin_turned_f32(x, 1u); }

// x^y for finite x > 0: log2(x) = e + p + q, with p exact in 24 bits and q some 100 times smaller; products by 12-bit halves.
fn pow_positive_f32(x: f32, exponent: f32) -> f32 {
    let y = clamp(exponent, -8589934592.0, 8589934592.0);
    let tiny = x < 1.17549435e-38;
    let i = bitcast<i32>(select(x, x * 8388608.0, tiny)) - 0x3f3504f3;
    let e = f32((i >> 23u) - select(0, 23, tiny));
    let f = bitcast<f32>((i & 0x7fffff) + 0x3f3504f3) - 1.0;
    let s = f / (2.0 + f);
    let s_head = head_f32(s);
    let f_head = head_f32(f);
    let s_rest = (((f - 2.0 * s_head) - s_head * f_head) - s_head * (f - f_head)) / (2.0 + f);
    let z = s * s;
    let r = z * (0.66666666666 + z * (0.4 + z * (0.285714286 + z * (0.222222222 + z * (0.1818182 + z * 0.15)))));
    let p = 2.0 * s_head * 1.4423828125;
    let q = 2.0 * s_head * 3.1222840e-4 + (2.0 * s_rest + s * r) * 1.44269504;
    let y_head = head_f32(y);
    let p_head = head_f32(p);
    let a = y_head * e;
    let b = y_head * p_head;
    var t = (a - round(a)) + (b - round(b));
    t += ((y - y_head) * e + (y_head * (p - p_head) + (y - y_head) * p)) + y * q;
    let k = round(t);
    let n = i32(clamp(round(a) + round(b) + k, -200.0, 200.0));
    return scale_f32(1.0 + exp_tail_f32((t - k) * 0.693147181), n);
}
// x^y; whole, odd: what y is.
fn pow_parity_f32(x: f32, y: f32, whole: bool, odd: bool) -> f32 {
    let size = abs(x);
    let edge = size == 0.0 || is_inf_f32(x);
    var r = pow_positive_f32(size, y);
    r = select(r, select(0.0, inf_f32(), (size == 0.0) != (y > 0.0)), edge);
    let negative = (bitcast<u32>(x) & 0x80000000u) != 0u;
    r = select(select(r, -r, negative && odd), nan_f32(), (negative && !whole && !edge) || is_nan_f32(x) || is_nan_f32(y));
    return select(r, 1.0, y == 0.0 || x == 1.0);
}
fn pow_f32(x: f32, y: f32) -> f32 {
    return pow_parity_f32(x, y, floor(y) == y, abs(y) < 16777216.0 && (i32(y) & 1) == 1 && floor(y) == y);
}

// y, an integer to divide by; that it is 0 is noted.
fn divisor_i32(y: i32) -> i32 {
    if (y == 0i) { divided_by_zero(); }
    return y;
}
fn divisor_u32(y: u32) -> u32 {
    if (y == 0u) { divided_by_zero(); }
    return y;
}
fn divisor_i64(y: i64) -> i64 {
    if (y == 0li) { divided_by_zero(); }
    return y;
}
fn divisor_u64(y: u64) -> u64 {
    if (y == 0lu) { divided_by_zero(); }
    return y;
}

fn divisor_64(y: vec2<u32>) -> vec2<u32> {
    if (all(y == vec2<u32>())) { divided_by_zero(); }
    return y;
}

// x^n or x^-n, modulo 2^bits.
fn ipow_i32(x: i32, n: u32, inverse: bool) -> i32 {
    var y = 1i;
    var square = x;
    for (var k = n; k != 0u; k >>= 1u) {
        if ((k & 1u) == 1u) { y *= square; }
        square *= square;
    }
    return select(y, select(0i, y, x == 1i || x == -1i), inverse);
}
fn ipow_i64(x: i64, n: u32, inverse: bool) -> i64 {
    var y = 1li;
    var square = x;
    for (var k = n; k != 0u; k >>= 1u) {
        if ((k & 1u) == 1u) { y *= square; }
        square *= square;
    }
    return select(y, select(0li, y, x == 1li || x == -1li), inverse);
}
// 64-bit numbers are pairs of words, the lower one first. The upper half of the 128-bit product.
fn high_product_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = high_product(a.x, b.x);
    let one = low + a.x * b.y;
    let two = one + a.y * b.x;
    let carries = select(0u, 1u, one < low) + select(0u, 1u, two < one);
    let high = add_64(vec2(a.y * b.y, high_product(a.y, b.y)), vec2(high_product(a.x, b.y), 0u));
    return add_64(add_64(high, vec2(high_product(a.y, b.x), 0u)), vec2(carries, 0u));
}
fn add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
fn mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(a.x * b.x, high_product(a.x, b.x) + a.x * b.y + a.y * b.x);
}
fn less_64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}
fn less_signed_64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}
fn abs_64(a: vec2<u32>) -> vec2<u32> {
    return select(a, sub_64(vec2<u32>(), a), (a.y >> 31u) == 1u);
}
// Digit by digit; b is not 0.
fn divide_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    var quotient = vec2<u32>();
    var rest = vec2<u32>();
    for (var k = 64u; k > 0u; k--) {
        let above = rest.y >> 31u;
        rest = shift_left_64(rest, 1u) | vec2(shift_right_64(a, k - 1u).x & 1u, 0u);
        quotient = shift_left_64(quotient, 1u);
        if (above == 1u || !less_64(rest, b)) {
            rest = sub_64(rest, b);
            quotient.x |= 1u;
        }
    }
    return quotient;
}
// Towards zero.
fn divide_signed_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let size = divide_64(abs_64(a), abs_64(b));
    return select(size, sub_64(vec2<u32>(), size), ((a.y ^ b.y) >> 31u) == 1u);
}
// What a division towards zero leaves, with the sign of a; `floored`: of one towards minus infinity, with the sign of b.
fn rest_signed_64(a: vec2<u32>, b: vec2<u32>, floored: bool) -> vec2<u32> {
    let rest = sub_64(a, mul_64(divide_signed_64(a, b), b));
    return select(rest, add_64(rest, b), floored && any(rest != vec2<u32>()) && ((rest.y ^ b.y) >> 31u) == 1u);
}
// Rounded to the nearest f32: of the upper word of the normalised number, in whose last bit stands whether any bit follows.
fn float_64(a: vec2<u32>) -> f32 {
    let n = select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
    if (n == 64u) { return 0.0; }
    let b = shift_left_64(a, n);
    return f32(b.y | select(0u, 1u, b.x != 0u)) * bitcast<f32>((159u - n) << 23u);
}
fn float_signed_64(a: vec2<u32>) -> f32 {
    let size = float_64(abs_64(a));
    return select(size, -size, (a.y >> 31u) == 1u);
}
// Towards zero; what i64 does not hold saturates, NaN is 0.
fn from_float_64(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    let exponent = i32((bits >> 23u) & 255u) - 150;
    let negative = (bits >> 31u) == 1u;
    if (exponent >= 40) {
        if ((bits & 0x7fffffffu) > 0x7f800000u) { return vec2<u32>(); }
        return select(vec2(0xffffffffu, 0x7fffffffu), vec2(0u, 0x80000000u), negative);
    }
    let fraction = vec2((bits & 0x7fffffu) | 0x800000u, 0u);
    let size = select(shift_right_64(fraction, u32(clamp(-exponent, 0, 63))), shift_left_64(fraction, u32(max(exponent, 0))), exponent >= 0);
    return select(size, sub_64(vec2<u32>(), size), negative);
}
fn shift_left_64(a: vec2<u32>, n: u32) -> vec2<u32> {
    if (n >= 32u) { return vec2(0u, a.x << (n - 32u)); }
    return vec2(a.x << n, (a.y << n) | ((a.x >> 1u) >> (31u - n)));
}
fn shift_right_64(a: vec2<u32>, n: u32) -> vec2<u32> {
    if (n >= 32u) { return vec2(a.y >> (n - 32u), 0u); }
    return vec2((a.x >> n) | ((a.y << 1u) << (31u - n)), a.y >> n);
}
// log2 of the fraction x / 2^63 in [1, 2), in units of 2^-64: a square that reaches 2 is a one.
fn log2_fraction_64(x: vec2<u32>) -> vec2<u32> {
    var z = x;
    var bits = vec2(0u);
    for (var k = 0u; k < 64u; k++) {
        z = high_product_64(z, z);
        let one = z.y >> 31u;
        z = shift_left_64(z, 1u - one);
        bits = shift_left_64(bits, 1u) | vec2(one, 0u);
    }
    return bits;
}
// 2^(x / 2^64) in units of 2^-63: factors for 20 bits, three terms of the series for the rest.
fn exp2_fraction_64(x: vec2<u32>) -> vec2<u32> {
    var roots = array(
        vec2(0xf9de6484u, 0xb504f333u), vec2(0x8db8a96fu, 0x9837f051u), vec2(0xea8bd6e7u, 0x8b95c1e3u), vec2(0xcc487b15u, 0x85aac367u),
        vec2(0xac2ba1d7u, 0x82cd8698u), vec2(0xbc030773u, 0x8164d1f3u), vec2(0xd999ab6cu, 0x80b1ed4fu), vec2(0xd5e5f6b1u, 0x8058d7d2u),
        vec2(0xd0e04f51u, 0x802c6436u), vec2(0x17467628u, 0x8016302fu), vec2(0x82028fd1u, 0x800b179cu), vec2(0x7fee3b5du, 0x80058bafu),
        vec2(0x0fdcfcb7u, 0x8002c5d0u), vec2(0x1bed4a49u, 0x800162e6u), vec2(0x92f702a4u, 0x8000b172u), vec2(0x2abbae02u, 0x800058b9u),
        vec2(0x8dade4d7u, 0x80002c5cu), vec2(0x44eaf636u, 0x8000162eu), vec2(0x21fa7c19u, 0x80000b17u), vec2(0x90de7e4du, 0x8000058bu));
    var q = vec2(0u, 0x80000000u);
    for (var k = 0u; k < 20u; k++) {
        if (((x.y >> (31u - k)) & 1u) == 1u) { q = shift_left_64(high_product_64(q, roots[k]), 1u); }
    }
    let v = high_product_64(vec2(x.x, x.y & 0xfffu), vec2(0xd1cf79acu, 0xb17217f7u));
    return add_64(q, high_product_64(q, add_64(v, shift_right_64(high_product_64(v, v), 1u))));
}
// x^y, towards zero, for an integer x >= 2 and a y > 0 that is not whole; 2^width where it is not below that. The error is below
// 2^-55 of it; then it is rounded to 53 bits as an f64 is, so that roots of powers are whole.
fn pow_fraction_64(x: vec2<u32>, y: f32, width: u32) -> vec2<u32> {
    if (y < 0.015625) { return vec2(1u, 0u); }
    let beyond = shift_left_64(vec2(1u, 0u), width);
    if (y >= 64.0) { return beyond; }
    let n = select(firstLeadingBit(x.x), 32u + firstLeadingBit(x.y), x.y != 0u);
    let f = log2_fraction_64(shift_left_64(x, 63u - n));
    let m = (bitcast<u32>(y) & 0x7fffffu) | 0x800000u;
    let s = 150u - (bitcast<u32>(y) >> 23u);
    let middle = add_64(vec2(high_product(m, f.x), 0u), vec2(m * f.y, high_product(m, f.y)));
    let whole = middle.y + m * n;
    var q = exp2_fraction_64(vec2((middle.x << (32u - s)) | ((m * f.x) >> s), (whole << (32u - s)) | (middle.x >> s)));
    var exponent = whole >> s;
    q = add_64(q, vec2(0x400u, 0u));
    if ((q.y & 0x80000000u) == 0u) {
        q = vec2(0u, 0x80000000u);
        exponent++;
    }
    if (exponent >= width) { return beyond; }
    return shift_right_64(vec2(q.x & 0xfffff800u, q.y), 63u - exponent);
}
// x^y, towards zero; exact where y is whole (modulo 2^bits); the lowest number where there is no such power.
fn pow_i32(x: i32, y: f32) -> i32 {
    let none = -2147483647i - 1i;
    if (x == 1i || y == 0.0) { return 1i; }
    if (is_nan_f32(y) || (x == 0i && y < 0.0)) { return none; }
    if (floor(y) == y || is_inf_f32(y)) { return ipow_i32(x, u32(min(abs(y), 16777216.0)), y < 0.0); }
    if (x < 0i) { return none; }
    if (x == 0i || y < 0.0) { return 0i; }
    return bitcast<i32>(pow_fraction_64(vec2(u32(x), 0u), y, 31u).x);
}
fn pow_i64(x: i64, y: f32) -> i64 {
    let none = -9223372036854775807li - 1li;
    if (x == 1li || y == 0.0) { return 1li; }
    if (is_nan_f32(y) || (x == 0li && y < 0.0)) { return none; }
    if (floor(y) == y || is_inf_f32(y)) { return ipow_i64(x, u32(min(abs(y), 16777216.0)), y < 0.0); }
    if (x < 0li) { return none; }
    if (x == 0li || y < 0.0) { return 0li; }
    let r = pow_fraction_64(vec2(u32(x & 4294967295li), u32(x >> 32u)), y, 63u);
    return i64((u64(r.y) << 32u) | u64(r.x));
}
// The remainder of x / y with x's sign, exact: long division of the significands, 8 bits a round.
fn fmod_f32(x: f32, y: f32) -> f32 {
    let a = bitcast<u32>(x) & 0x7fffffffu;
    let b = bitcast<u32>(y) & 0x7fffffffu;
    if (a >= 0x7f800000u || b > 0x7f800000u || b == 0u) { return nan_f32(); }
    if (a < b) { return x; }
    let low = max(b >> 23u, 1u);
    let divisor = select(b & 0x7fffffu, (b & 0x7fffffu) | 0x800000u, b >= 0x800000u);
    var rest = select(a & 0x7fffffu, (a & 0x7fffffu) | 0x800000u, a >= 0x800000u) % divisor;
    for (var k = max(a >> 23u, 1u) - low; k > 0u; k -= min(k, 8u)) { rest = (rest << min(k, 8u)) % divisor; }
    return copysign_f32(scale_f32(f32(rest), i32(low) - 150), x);
}
// The remainder with y's sign, a zero too.
fn mod_f32(x: f32, y: f32) -> f32 {
    let rest = fmod_f32(x, y);
    return select(select(rest, rest + y, (rest < 0.0) != (y < 0.0)), copysign_f32(0.0, y), rest == 0.0);
}
// v, which is below 1e9 in magnitude: a compiler can't merge what made it with what is made of it (a sum with a product, to one rounding).
fn apart_f32(v: f32) -> f32 { return clamp(v, -1e9, 1e9); }

// float64, where shaders have it. Their library has no exponential nor logarithm of it: powers of two are products of their squares.
fn is_nan_f64(x: f64) -> bool { return is_nan_f32(f32(x)); }
fn is_inf_f64(x: f64) -> bool { return abs(x) > 1.7976931348623157e308lf; }
fn max_f64(x: f64, y: f64) -> f64 { return select(max(x, y), f64(nan_f32()), is_nan_f64(x) || is_nan_f64(y)); }
fn min_f64(x: f64, y: f64) -> f64 { return select(min(x, y), f64(nan_f32()), is_nan_f64(x) || is_nan_f64(y)); }
fn clamp_f64(x: f64, low: f64, high: f64) -> f64 { return select(min(max(x, low), high), x, is_nan_f64(x)); }
// x 2^n for |n| <= 2047.
fn scale_f64(x: f64, n: i32) -> f64 {
    var y = x;
    var square = select(0.5lf, 2.0lf, n > 0);
    for (var k = u32(abs(n)); k != 0u; k >>= 1u) {
        if ((k & 1u) == 1u) { y *= square; }
        square *= square;
    }
    return y;
}
// e^x = 2^k e^r with |r| <= log(2) / 2: Taylor's series to the 13th power leaves less than half an ulp.
fn exp_f64(x: f64) -> f64 {
    let k = round(clamp(x, -746.0lf, 710.0lf) * 1.4426950408889634lf);
    let r = x - k * 0.693147180369123816490lf;          // without the rest of k log 2: some drivers would add up both factors, and lose it
    let rest = k * 1.90821492927058770002e-10lf;        // e^-rest to its third power
    var sum = 1.0lf;
    for (var n = 13u; n > 0u; n--) { sum = 1.0lf + sum * r / f64(n); }
    sum -= sum * (rest - 0.5lf * rest * rest);
    let y = scale_f64(scale_f64(sum, i32(k) / 2), i32(k) - i32(k) / 2);
    return select(select(select(y, 0.0lf, x < -746.0lf), f64(inf_f32()), x > 710.0lf), x, is_nan_f64(x));
}
// log x = k log 2 + log m with m between sqrt(1/2) and sqrt(2): twice the series of artanh((m - 1) / (m + 1)).
fn log_f64(x: f64) -> f64 {
    var m = x;
    var k = 0i;
    for (var n = 1024i; n > 0i && x > 0.0lf && !is_inf_f64(x); n /= 2i) {
        let power = scale_f64(1.0lf, min(n, 1022i));
        if (m >= power) { m /= power; k += min(n, 1022i); }
        if (m * power < 2.0lf) { m *= power; k -= min(n, 1022i); }
    }
    if (m > 1.4142135623730951lf) { m *= 0.5lf; k += 1i; }
    let s = (m - 1.0lf) / (m + 1.0lf);
    var sum = 0.0lf;
    for (var n = 25i; n > 0i; n -= 2i) { sum = sum * s * s + 1.0lf / f64(n); }
    let y = f64(k) * 0.693147180369123816490lf + (2.0lf * s * sum + f64(k) * 1.90821492927058770002e-10lf);
    let edge = select(f64(nan_f32()), f64(-inf_f32()), x == 0.0lf);
    return select(select(y, x, is_nan_f64(x) || is_inf_f64(x)), edge, x <= 0.0lf);
}
// The remainder of a division towards zero, exactly: multiples of |y| by powers of two are taken off, each difference exact.
fn fmod_f64(x: f64, y: f64) -> f64 {
    if (is_nan_f64(x) || is_nan_f64(y) || is_inf_f64(x) || y == 0.0lf) { return f64(nan_f32()); }
    var rest = abs(x);
    var part = abs(y);
    if (is_inf_f64(y)) { return x; }
    var doubled = 0u;
    while (part <= rest * 0.5lf) { part *= 2.0lf; doubled++; }
    for (var k = 0u; k <= doubled; k++) {
        if (rest >= part) { rest -= part; }
        part *= 0.5lf;
    }
    return select(rest, -rest, x < 0.0lf);
}
// The remainder with y's sign, a zero too.
fn mod_f64(x: f64, y: f64) -> f64 {
    let rest = fmod_f64(x, y);
    if (rest == 0.0lf) { return select(0.0lf, -0.0lf, y < 0.0lf); }
    return select(rest, rest + y, (rest < 0.0lf) != (y < 0.0lf));
}
