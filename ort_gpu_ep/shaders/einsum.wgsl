// y[i] = sum over k < K of a[a_out(i) + a_sum(k)] * b[b_out(i) + b_sum(k)]: an einsum with any strides. One invocation per element.
// Expects: a, b? (1 where left out), K, and per operand the offsets of an output element and of a point of the summed indices.
// Source: ONNX Einsum.
fn term(a_first: u32, b_first: u32, k: u32) -> a_t {
    if (HAS_B) { return a_at(a_first + a_sum(k)) * a_t(b_at(b_first + b_sum(k))); }
    return a_at(a_first + a_sum(k));
}

fn element(i: u32) -> y_t {
    let a_first = a_out(i);
    let b_first = b_out(i);
    var sum = vec4<a_t>();   // four sums: rounding errors stay small
    var k = 0u;
    for (; k + 4u <= K; k += 4u) {
        sum += vec4<a_t>(term(a_first, b_first, k), term(a_first, b_first, k + 1u), term(a_first, b_first, k + 2u), term(a_first, b_first, k + 3u));
    }
    for (; k < K; k++) { sum.x += term(a_first, b_first, k); }
    return (sum.x + sum.y) + (sum.z + sum.w);
}
