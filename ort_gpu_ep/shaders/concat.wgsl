// A row of y from START on is a row of x0, then a row of x1, ...: an invocation per element (or four) of the inputs.
// Expects: x0, x1, ... (COUNT of them), y, VECTORS (all positions count fours), TOTAL (in all inputs), ROW (in a row of all inputs),
// OUT_ROW (in a row of y), START, and of each input k SIZE<k> (in its row) and END<k> (of it and those before it).
// Not for packed y: words may be shared.
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= TOTAL) { return; }
    let row = i / ROW;
    let at = i - row * ROW;
    let place = row * OUT_ROW + START + at;
#for k in COUNT
    if (at < END$k) {
#if VECTORS
        y_set4(place, x$(k)_at4(row * SIZE$k + at - (END$k - SIZE$k)));
#else
        y_set(place, x$(k)_at(row * SIZE$k + at - (END$k - SIZE$k)));
#end
        return;
    }
#end
}
