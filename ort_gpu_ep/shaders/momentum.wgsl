// One step of gradient descent with momentum: the velocity, and the parameter that moves along it.
// Expects: p, grad, velocity [N], hyper [1] (rate); MOMENTUM, DECAY, DIRECT, ALONG (what of the gradient and of the velocity p follows), N.
// Writes new_p, new_velocity [N]. Source: the body of MomentumUpdate in training/functions.py.
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= N) { return; }
    let p = p_at(i);
    let g = grad_at(i) + p * DECAY;
    let v = velocity_at(i) * MOMENTUM + g;
    new_velocity_set(i, v);
    new_p_set(i, p - (g * DIRECT + v * ALONG) * hyper_at(0u));
}
