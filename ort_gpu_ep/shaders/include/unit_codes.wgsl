// Packed codes as operands of matrix_product.wgsl. Expects: w, table [blocks, M] (scales, times a power of two for each column), zp?;
// CODES (bits of a code) WORDS (of a row) FLIP BLOCK (codes that share a scale, 0: a row), and what zero_point.wgsl has.
#include zero_point.wgsl

// (code - zero) * scale, of a code where it lies: `bits` is code * 2^s below 2^16, `zero` 2^23 + zero * 2^s, and scale is over 2^s. 2^23 is a
// float whose low bits are the whole numbers above it, so that nothing is rounded but the product.
fn weight(bits: u32, zero: f32, scale: f32) -> f32 { return (bitcast<f32>(bits | 0x4b000000u) - zero) * scale; }
