// twiddles[2 r] = cos(2 pi r / N), twiddles[2 r + 1] = sin(2 pi r / N). One invocation per element. Expects: N.
fn element(i: u32) -> twiddles_t { return sin_of_turn_f32(i / 2u, N, 1u - i % 2u); }
