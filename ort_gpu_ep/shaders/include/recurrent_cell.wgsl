// New (h, c) of unit j from the gates' input shares x (with biases) and recurrent shares s.
fn cell(d: u32, j: u32, x: vec4<f32>, s: vec4<f32>, h: f32, c: f32) -> vec2<f32> {
    if (CELL == 0u) { return vec2<f32>(act_f(d, x.x + s.x), 0.0); }
    if (CELL == 1u) {
        let z = act_f(d, x.x + s.x);
        var share = s.z;
        if (LINEAR && HAS_BIAS) { share += extra(R_SIZE + (d * PLANES + GATES) * H + j); }
        if (LINEAR) { share *= act_f(d, x.y + s.y); }
        return vec2<f32>((1.0 - z) * act_g(d, x.z + share) + z * h, 0.0);
    }
    var a = x + s;
    let p = P_AT + d * 3u * H + j;
    if (PEEPHOLES) { a += c * vec4<f32>(extra(p), 0.0, extra(p + 2u * H), 0.0); }
    let i = act_f(d, a.x);
    let forget = select(act_f(d, a.z), 1.0 - i, COUPLED);
    let new_c = forget * c + i * act_g(d, a.w);
    if (PEEPHOLES) { a.y += new_c * extra(p + H); }
    return vec2<f32>(act_f(d, a.y) * act_a(d, new_c), new_c);
}
