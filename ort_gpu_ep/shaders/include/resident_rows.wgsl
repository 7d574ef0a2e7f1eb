// Tokens that a cache of CAPACITY rows keeps of so many: all, or what is left where room for CAPACITY - WINDOW + 1 is made at once.
fn resident(tokens: u32) -> u32 {
    let gap = CAPACITY - WINDOW + 1u;
    return tokens - gap * ((max(tokens, CAPACITY) - CAPACITY + gap - 1u) / gap);
}
