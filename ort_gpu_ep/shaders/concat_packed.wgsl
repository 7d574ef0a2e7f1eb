// y[r] = row r of x0, then row r of x1, ...: tensors of packed elements joined along an axis, each seen as rows of the elements from that
// axis on; of bytes brought from their scale and zero point to those of y, where there are such.
// Expects: x0, x1, ... (COUNT of them), y, ROW (elements in a row of y), and of each input k SIZE<k> (in its row), END<k> (of it and those
// before it), s<k>? and z<k>? (scale, zero point; left out: elements stay what they are), y_scale? y_zp?, LOW and HIGH (the range of y).
// Source: ONNX Concat; com.microsoft QLinearConcat.
fn element(i: u32) -> y_t {
    let row = i / ROW;
    let at = i - row * ROW;
#for k in COUNT
    if (at < END$k) {
        let v = x$(k)_at(row * SIZE$k + at - (END$k - SIZE$k));
        if (!HAS_S$k) { return v; }
        let number = f32(i32(v) - i32(z$(k)_at(0u))) * s$(k)_at(0u);
        return y_t(clamp(round(divide_f32(number, y_scale_at(0u)).x) + f32(y_zp_at(0u)), LOW, HIGH));
    }
#end
    return y_t();
}
