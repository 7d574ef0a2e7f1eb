// Of up to three matrices of 4-bit codes as the model stores them: sixteen bytes of codes, the scale and the zero point of a block.
// Expects: w (vectors of words), table ([N, BLOCKS]), zp? and those of other matrices, w1 table1 zp1 and so on; MATRICES POINTS ZP_ROW BLOCKS.
#if POINTS
fn zero_in(word: u32, at: u32) -> f32 { return f32(extractBits(word, at * 4u, 4u)); }
#end
fn codes_of_0(i: u32) -> vec4<u32> { return w_word4(i); }
fn scale_of_0(row: u32, block: u32) -> f32 { return table_at(row * BLOCKS + block); }
#if POINTS
fn zero_of_0(row: u32, block: u32) -> f32 { return zero_in(zp_word((row * ZP_ROW + block) / 8u), (row * ZP_ROW + block) % 8u); }
#end
#if MATRICES > 1
fn codes_of_1(i: u32) -> vec4<u32> { return w1_word4(i); }
fn scale_of_1(row: u32, block: u32) -> f32 { return table1_at(row * BLOCKS + block); }
#if POINTS
fn zero_of_1(row: u32, block: u32) -> f32 { return zero_in(zp1_word((row * ZP_ROW + block) / 8u), (row * ZP_ROW + block) % 8u); }
#end
#end
#if MATRICES > 2
fn codes_of_2(i: u32) -> vec4<u32> { return w2_word4(i); }
fn scale_of_2(row: u32, block: u32) -> f32 { return table2_at(row * BLOCKS + block); }
#if POINTS
fn zero_of_2(row: u32, block: u32) -> f32 { return zero_in(zp2_word((row * ZP_ROW + block) / 8u), (row * ZP_ROW + block) % 8u); }
#end
#end
