fn is_nan_of_x(v: x_t) -> bool { return FLOAT && is_nan_f32(f32(v)); }

// -1, 0 or 1: how slice a of x stands to slice b, element by element; NaN comes last.
fn compared(a: u32, b: u32) -> i32 {
    for (var o = 0u; o < OUTER; o++) {
        for (var i = 0u; i < INNER; i++) {
            let u = x_at((o * N + a) * INNER + i);
            let v = x_at((o * N + b) * INNER + i);
            let u_none = is_nan_of_x(u);
            let v_none = is_nan_of_x(v);
            if (u_none != v_none) { return select(-1, 1, u_none); }
            if (!u_none && u != v) { return select(1, -1, u < v); }
        }
    }
    return 0;
}
