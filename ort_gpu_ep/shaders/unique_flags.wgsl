// flags[k] = whether slice k is the first of its equals. Expects: first.
fn element(k: u32) -> flags_t { return first_at(k) == k; }
