// Byte i of y: codes of BITS of rows of LENGTH bytes, in another order of k: place k of a row is code places[k], the low bits first. What is
// behind K is 0. Expects: w (bytes, rows of LENGTH), places ([K]), y (likewise), K BITS LENGTH.
fn element(i: u32) -> y_t {
    let row = i / LENGTH;
    var found = 0u;
#for j in 8 // BITS
    {
        let k = i % LENGTH * $(8 // BITS)u + $(j)u;
        if (k < K) {
            let bit = u32(clamp(i32(places_at(k)), 0, i32(K) - 1)) * BITS;
            found |= extractBits(u32(w_at(row * LENGTH + bit / 8u)), bit % 8u, BITS) << $(j * BITS)u;
        }
    }
#end
    return y_t(found);
}
