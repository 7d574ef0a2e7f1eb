// A row of y from START on is a row of x0, then a row of x1, ...: an invocation per element (of packed ones: word; or four) of the inputs.
// Expects: x0, x1, ... (COUNT of them), y, VECTORS (all positions count fours), TOTAL (in all inputs), ROW (in a row of all inputs),
// OUT_ROW (in a row of y), START, and of each input k SIZE<k> (in its row) and END<k> (of it and those before it). Of packed elements
// all of these count words, and it is bound raw.
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= TOTAL) { return; }
    let row = i / ROW;
    let at = i - row * ROW;
    let place = row * OUT_ROW + START + at;
#for k in COUNT
    if (at < END$k) {
#if VECTORS
#if Y_BITS < 32
        y_set4(place, x$(k)_word4(row * SIZE$k + at - (END$k - SIZE$k)));
#else
        y_set4(place, x$(k)_at4(row * SIZE$k + at - (END$k - SIZE$k)));
#end
#else
#if Y_BITS < 32
        y_store_word(place, x$(k)_word(row * SIZE$k + at - (END$k - SIZE$k)));
#else
        y_set(place, x$(k)_at(row * SIZE$k + at - (END$k - SIZE$k)));
#end
#end
        return;
    }
#end
}
