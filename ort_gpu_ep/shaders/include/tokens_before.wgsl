// Tokens of batch b in the cache before this step. Expects: lengths (tokens with this step, less one), FIRST SEQUENCE TOTAL.
fn lengths_fit(b: u32) -> bool {
    let with_this = lengths_at(b) + 1;
#if FIRST
    return with_this >= 1 && u32(with_this) <= TOTAL;
#else
    return with_this >= i32(SEQUENCE) && u32(with_this) <= TOTAL;
#end
}

fn tokens_before(b: u32) -> u32 {
    if (!lengths_fit(b)) { out_of_range(); }
#if FIRST
    return 0u;
#else
    return u32(clamp(lengths_at(b) + 1, i32(SEQUENCE), i32(TOTAL))) - SEQUENCE;
#end
}
