// Between floats and whole numbers of less than 22 bits, by the lowest bits of 1.5 * 2^23: many GPUs convert at a fraction of the rate at which they add.
const WHOLE: f32 = 12582912.0;
fn float_of(number: i32) -> f32 { return bitcast<f32>(number + bitcast<i32>(WHOLE)) - WHOLE; }
fn nearest(x: vec4<f32>) -> vec4<i32> { return bitcast<vec4<i32>>(x + WHOLE) - bitcast<i32>(WHOLE); }   // halves go to even
