// Of the parts of KEYS keys each of attention_split.wgsl those that the query of batch b sees: from first_part to before end_part. With `before` (the
// tokens before its own) the same for a whole workgroup.
// Expects: KEYS SPLITS CAUSAL LENGTHS WINDOW, lengths? (include/tokens_before.wgsl).
fn first_part(before: u32) -> u32 {
#if WINDOW
    return (max(before + 1u, WINDOW) - WINDOW) / KEYS;
#else
    return 0u;
#end
}

fn end_part(b: u32, before: u32) -> u32 {
#if LENGTHS and CAUSAL
    return min(before / KEYS + 1u, SPLITS);
#else
    return SPLITS;
#end
}
