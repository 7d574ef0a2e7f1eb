// y[i] = x[i] in another element type, as WGSL converts it. One invocation per element. Expects: x.
fn element(i: u32) -> y_t { return y_t(x_at(i)); }
