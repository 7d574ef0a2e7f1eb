// y[p, c] = updates[owners[p] - 1, c], or x[p, c] where no update goes to row p; an invocation per element of y.
// Expects: x, updates, owners (1 + update of each row, 0 for none), ROW (elements of a row). Bound raw.
fn element(i: u32) -> y_t {
    let owner = owners_at(i / ROW);
    if (owner == 0u) { return x_at(i); }
    return updates_at((owner - 1u) * ROW + i % ROW);
}
