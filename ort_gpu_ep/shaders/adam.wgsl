// One step of Adam: running means of the gradient and of its square, and the parameter that moves along them.
// Expects: p, grad, mean, square [N], hyper [3] (rate, root, kept); BETA1, BETA2, REST1, REST2 (1 - beta), EPSILON, N.
// Writes new_p, new_mean, new_square [N]. Source: the body of AdamUpdate in training/functions.py.
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= N) { return; }
    let g = grad_at(i);
    let m = mean_at(i) * BETA1 + g * REST1;
    let v = square_at(i) * BETA2 + g * g * REST2;
    new_mean_set(i, m);
    new_square_set(i, v);
    new_p_set(i, p_at(i) * hyper_at(2u) - m * hyper_at(0u) / (sqrt(v) * hyper_at(1u) + EPSILON));
}
