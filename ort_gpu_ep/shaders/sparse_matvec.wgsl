// y[c, n] = ALPHA * sum over the entries of row n of value * x[c, place] + BETA * bias, for COLS vectors c; the entries as formats.py has
// them. TEAM invocations sum a row: each takes a share of its entries, whose places follow from the distances of the shares before.
// Expects: entries (uint8), starts ([N + 1]: first entry of a row), x, table (16 values), c?, y;
// N K ENTRIES COLS TEAM X_COL X_K Y_COL Y_ROW ALPHA BETA, c_index.
const ROWS: u32 = WORKGROUP_SIZE / TEAM;
var<workgroup> lengths: array<u32, WORKGROUP_SIZE>;
var<workgroup> sums: array<f32, WORKGROUP_SIZE * COLS>;
var<workgroup> book: array<f32, 512>;   // a copy of the 16 values for each of 32 invocations: no two meet in a bank

// The distances of a word's entries, whose low bits they are, added up.
fn distances(word: u32) -> u32 {
    let pairs = (word & 0x000f000fu) + ((word >> 8u) & 0x000f000fu);
    return (pairs & 0xffffu) + (pairs >> 16u) + 4u;
}

fn group_main(group: u32, lane: u32) {
    for (var i = lane; i < 512u; i += WORKGROUP_SIZE) { book[i] = table_at(i / 32u); }
    let member = lane % TEAM;
    let row = group * ROWS + lane / TEAM;
    let first = min(u32(starts_at(min(row, N))), ENTRIES);      // whatever a broken file says, no row has more entries than elements
    let end = clamp(u32(starts_at(min(row + 1u, N))), first, min(first + K, ENTRIES));
    let words = (end + 3u) / 4u - first / 4u;
    let share = (words + TEAM - 1u) / TEAM;
    let begin = first / 4u + min(member * share, words);
    let to = first / 4u + min(member * share + share, words);
    var length = 0u;
    for (var q = begin; q < to; q++) { length += distances(entries_word(q)); }
    lengths[lane] = length;
    for (var reach = 1u; reach < TEAM; reach *= 2u) {
        workgroupBarrier();
        var before = 0u;
        if (member >= reach) { before = lengths[lane - reach]; }
        workgroupBarrier();
        lengths[lane] += before;
    }
    // Entries of the row before, in the first word, are walked past: their distances are taken off where the walk begins.
    var skipped = 0u;
    for (var e = first / 4u * 4u; e < first; e++) { skipped += (entries_at(e) & 15u) + 1u; }
    var at = lengths[lane] - length - skipped - 1u;      // before a row's first entry: -1 modulo 2^32
#for c in COLS
    var sum$c = 0.0;
#end
    for (var q = begin; q < to; q++) {
        let word = entries_word(q);
#for j in 4
        {
            at += extractBits(word, $(8 * j)u, 4u) + 1u;
            if (at < K && 4u * q + $(j)u < end) {      // not so for what belongs to the rows before and after
                let value = book[extractBits(word, $(8 * j + 4)u, 4u) * 32u + lane % 32u];
#for c in COLS
                sum$c = fma(value, x_at($(c)u * X_COL + at * X_K), sum$c);
#end
            }
        }
#end
    }
#include team_sums.wgsl
}
