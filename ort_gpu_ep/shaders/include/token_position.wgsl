// The row of the cosines and sines for token `token` of batch b, of which `before` came before this step. Expects what append_tokens.wgsl says.
fn token_position(b: u32, token: u32, before: u32) -> u32 {
    var position = before + token;
#if ROTARY
#if HAS_POSITIONS
#if FIRST
    let given = i32(positions_at(0u)) + i32(token);
#else
    let given = i32(positions_at(b * SEQUENCE + token));
#end
    if (given < 0) { out_of_range(); }
    position = u32(max(given, 0));
#end
    if (position >= COSINES) { out_of_range(); }
#end
    return position;
}
