// indices[i] = position in x (flat over all of x) of the first maximum under MaxPool's window. One invocation per element.
// Expects: COLUMN_MAJOR and, for each spatial axis: IN, OUT, K (taps), S (stride), D (dilation), H (padding before).
// Source: ONNX MaxPool, output Indices.
fn element(i: u32) -> indices_t {
    let o = vec3<i32>(vec3<u32>(i / (OUT1 * OUT2) % OUT0, i / OUT2 % OUT1, i % OUT2));
    let plane = i / (OUT0 * OUT1 * OUT2) * (IN0 * IN1 * IN2);
    let size = vec3<i32>(vec3<u32>(IN0, IN1, IN2));
    let start = o * vec3<i32>(i32(S0), i32(S1), i32(S2)) - vec3<i32>(i32(H0), i32(H1), i32(H2));
    var found = false;
    var best = x_t();
    var at = vec3<i32>(0);
    for (var a = 0; a < i32(K0); a++) {
        for (var b = 0; b < i32(K1); b++) {
            for (var c = 0; c < i32(K2); c++) {
                let p = start + vec3<i32>(a * i32(D0), b * i32(D1), c * i32(D2));
                if (any(p < vec3<i32>(0)) || any(p >= size)) { continue; }
                let v = x_at(plane + u32((p.x * size.y + p.y) * size.z + p.z));
                if (!found || v > best) {
                    best = v;
                    at = p;
                    found = true;
                }
            }
        }
    }
    let rows_first = (at.x * size.y + at.y) * size.z + at.z;
    let columns_first = at.x + size.x * (at.y + size.y * at.z);
    return indices_of(plane + u32(select(rows_first, columns_first, COLUMN_MAJOR)), 0u);
}
