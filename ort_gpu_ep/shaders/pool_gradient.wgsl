// dx[i] = the sum over the windows that hold place i: of dy where the window has its maximum there (MAX), or of dy times what each place has
// of the window's average. One invocation per element of dx.
// Expects: dy [N, C, OUT...]; with MAX indices (i32, where in x each window's maximum is, flat over all of x), else share [OUT...]; for each
//   of three spatial axes: IN, OUT, K (taps), S (stride), D (dilation), H (padding before).
// Source: the bodies of MaxPoolGradient and AveragePoolGradient in training/functions.py.
fn first_window(p: i32, k: i32, s: i32, d: i32, h: i32) -> i32 {
    return max((p + h - (k - 1) * d + s - 1) / s, 0);
}

fn element(i: u32) -> dx_t {
    let p = vec3<i32>(vec3<u32>(i / (IN1 * IN2) % IN0, i / IN2 % IN1, i % IN2));
    let plane = i / (IN0 * IN1 * IN2) * (OUT0 * OUT1 * OUT2);
    let a0 = first_window(p.x, i32(K0), i32(S0), i32(D0), i32(H0));
    let b0 = first_window(p.y, i32(K1), i32(S1), i32(D1), i32(H1));
    let c0 = first_window(p.z, i32(K2), i32(S2), i32(D2), i32(H2));
    var total = 0.0;
    for (var a = a0; a <= min((p.x + i32(H0)) / i32(S0), i32(OUT0) - 1); a++) {
        for (var b = b0; b <= min((p.y + i32(H1)) / i32(S1), i32(OUT1) - 1); b++) {
            for (var c = c0; c <= min((p.z + i32(H2)) / i32(S2), i32(OUT2) - 1); c++) {
                let o = plane + u32((a * i32(OUT1) + b) * i32(OUT2) + c);
                #if MAX
                if (indices_at(o) == i32(i)) { total += dy_at(o); }
                #else
                let off = p + vec3(i32(H0), i32(H1), i32(H2)) - vec3(a, b, c) * vec3(i32(S0), i32(S1), i32(S2));
                if (all(off % vec3(i32(D0), i32(D1), i32(D2)) == vec3(0))) { total += dy_at(o) * share_at(o - plane); }
                #end
            }
        }
    }
    return total;
}
