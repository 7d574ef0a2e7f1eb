// A row of x from START on is a row of y0, then a row of y1, ...: an invocation per element (of packed ones: word; or four) of the outputs.
// Expects: x, y0, y1, ... (COUNT of them), VECTORS (all positions count fours), TOTAL (in all outputs), ROW (in a row of all outputs),
// IN_ROW (in a row of x), START, and of each output k SIZE<k> (in its row) and END<k> (of it and those before it). Of packed elements
// all of these count words.
fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= TOTAL) { return; }
    let row = i / ROW;
    let at = i - row * ROW;
    let place = row * IN_ROW + START + at;
#for k in COUNT
    if (at < END$k) {
#if VECTORS
#if X_BITS < 32
        y$(k)_set4(row * SIZE$k + at - (END$k - SIZE$k), x_word4(place));
#else
        y$(k)_set4(row * SIZE$k + at - (END$k - SIZE$k), x_at4(place));
#end
#else
#if X_BITS < 32
        y$(k)_store_word(row * SIZE$k + at - (END$k - SIZE$k), x_word(place));
#else
        y$(k)_set(row * SIZE$k + at - (END$k - SIZE$k), x_at(place));
#end
#end
        return;
    }
#end
}
