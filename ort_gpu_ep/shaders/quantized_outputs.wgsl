// What makes bytes of the sums of a product, by its outputs c (filters, columns): y[c] = bias, y[OUTPUTS + c] = the bits of
// ALPHA * a_scale * b_scale / y_scale, y[2 OUTPUTS] those of y's zero point. K > 0: from the bias is taken off what the zero point of x
// makes of the weights of c, and y[2 OUTPUTS + 1] is that zero point four times over, in a word.
// Expects: a_scale, b_scale, y_scale, y_zp, c?; ALPHA OUTPUTS, B_STRIDE (0: one b_scale for all), K; with K > 0 w, x_zp where X_ZP, W_M, W_K
// (strides of w), X_SHIFT, W_SHIFT (128 for unsigned ones), and bytes count without these.
fn element(i: u32) -> y_t {
    if (i >= 2u * OUTPUTS) {
#if K > 0
        if (i > 2u * OUTPUTS) { return (u32(zero()) & 0xffu) * 0x01010101u; }
#end
        return bitcast<u32>(f32(y_zp_at(0u)));
    }
    if (i >= OUTPUTS) { return bitcast<u32>(divide_f32(ALPHA * a_scale_at(0u) * b_scale_at((i - OUTPUTS) * B_STRIDE), y_scale_at(0u)).x); }
    var sum = i32(c_at(i));
#if K > 0
    var weights = 0i;
    for (var k = 0u; k < K; k++) { weights += i32(w_at(i * W_M + k * W_K)) - i32(W_SHIFT); }
    sum -= zero() * weights;
#end
    return bitcast<u32>(sum);
}

#if K > 0
#if X_ZP
fn zero() -> i32 { return i32(x_zp_at(0u)) - i32(X_SHIFT); }
#else
fn zero() -> i32 { return -i32(X_SHIFT); }
#end
#end
