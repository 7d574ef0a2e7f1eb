// The keys that any of the SQ tokens of a batch sees, from first_key to before end_key, and the parts of them that attention_split.wgsl's workgroups have: as
// many steps of KEYS keys each, so that at most SPLITS parts, those before end_part, have any. With `before` (the tokens before these) the same for a whole
// workgroup.
// Expects: KEYS SPLITS SK SQ CAUSAL LENGTHS WINDOW.
fn end_key(before: u32) -> u32 {
#if LENGTHS or CAUSAL
    return min(before + SQ, SK);
#else
    return SK;
#end
}

fn first_key(before: u32) -> u32 {
#if WINDOW
    return min(max(before + 1u, WINDOW) - WINDOW, SK - 1u);
#else
    return 0u;
#end
}

fn steps_of_keys(before: u32) -> u32 { return (end_key(before) - first_key(before) + KEYS - 1u) / KEYS; }

fn keys_of_part(before: u32) -> u32 { return (steps_of_keys(before) + SPLITS - 1u) / SPLITS * KEYS; }

fn end_part(before: u32) -> u32 {
    let each = (steps_of_keys(before) + SPLITS - 1u) / SPLITS;
    return (steps_of_keys(before) + each - 1u) / each;
}
