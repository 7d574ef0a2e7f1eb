// y[c, n] = ALPHA * sum over the entries of row n of value * x[c, place] + BETA * bias, as sparse_matvec.wgsl has it, with x in workgroup
// memory, where reads at places that the data names cost no more than others, and a row for each subgroup at a time. Its invocations
// take 16 neighbouring entries each, and learn from the distances of those before where theirs are.
// Expects: entries (uint8), starts ([N + 1]: first entry of a row), x, table (16 values), c?, y;
// N K ENTRIES COLS ROWS (of a workgroup) X_COL X_K Y_COL Y_ROW ALPHA BETA, c_index.
const HELD: u32 = K + 1u;       // and a 0 behind, for what a broken file has past the end of its row
const LAST: u32 = (ENTRIES + 3u) / 4u - 1u;
var<workgroup> held: array<f32, HELD * COLS>;
var<workgroup> book: array<f32, 512>;   // a copy of the 16 values for each of 32 invocations: no two meet in a bank

// Four words of entries, with zeros for what is not the row's: entries first ... end - 1.
fn words_at(q: u32, first: u32, end: u32) -> vec4<u32> {
    if (16u * q >= end) { return vec4<u32>(); }
    let at = 4u * q;
    var words = vec4<u32>(
        entries_word(at), entries_word(min(at + 1u, LAST)), entries_word(min(at + 2u, LAST)), entries_word(min(at + 3u, LAST)));
    if (16u * q < first || 16u * q + 16u > end) {
        words &= bytes_below(q, end) & ~bytes_below(q, first);
    }
    return words;
}

// All bits of those entries of four words that come before entry `to`.
fn bytes_below(q: u32, to: u32) -> vec4<u32> {
    let bits = clamp(8 * (i32(to) - 16 * i32(q)) - vec4<i32>(0, 32, 64, 96), vec4<i32>(), vec4<i32>(32));
    return vec4<u32>(
        extractBits(0xffffffffu, 0u, u32(bits.x)), extractBits(0xffffffffu, 0u, u32(bits.y)),
        extractBits(0xffffffffu, 0u, u32(bits.z)), extractBits(0xffffffffu, 0u, u32(bits.w)));
}

fn group_main(group: u32, lane: u32) {
    for (var i = lane; i < 512u; i += WORKGROUP_SIZE) { book[i] = table_at(i / 32u); }
#for c in COLS
    for (var k = lane; k < K; k += 8u * WORKGROUP_SIZE) {      // eight reads under way; the last lanes read the last element again
#for i in 8
        let at$i = min(k + $(i)u * WORKGROUP_SIZE, K - 1u);
        let x$i = x_at($(c)u * X_COL + at$i * X_K);
#end
#for i in 8
        held[$(c)u * HELD + at$i] = x$i;
#end
    }
    if (lane == 0u) { held[$(c)u * HELD + K] = 0.0; }
#end
    workgroupBarrier();
    let copy = lane % 32u;
    for (var r = subgroup_id; r < ROWS; r += subgroups) {
        let row = group * ROWS + r;
        let first = min(u32(starts_at(min(row, N))), ENTRIES);      // whatever a broken file says, no row has more entries than elements
        let end = clamp(u32(starts_at(min(row + 1u, N))), first, min(first + K, ENTRIES));
#for c in COLS
        var sum$c = 0.0;
#end
        var base = 0xffffffffu;     // where the entry before is: -1 modulo 2^32
        let begin = first / 16u;
        var words = words_at(begin + subgroup_lane, first, end);
        for (var round = begin; round * 16u < end; round += subgroup_size) {
            let q = round + subgroup_lane;
            let next = words_at(q + subgroup_size, first, end);
            // Byte j of `far`: how far from the entry before its word entry j is.
            let far = ((words & vec4<u32>(0x0f0f0f0fu)) + vec4<u32>(0x01010101u)) * 0x01010101u;
            let codes = (words >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
            let lengths = far >> vec4<u32>(24u);
            let early = clamp(first, 16u * q, 16u * q + 16u) - 16u * q;     // entries of the row before, and of that behind
            let late = 16u * q + 16u - clamp(end, 16u * q, 16u * q + 16u);
            let length = lengths.x + lengths.y + lengths.z + lengths.w - early - late;
            var at = base + subgroupExclusiveAdd(length) - early;
            base += subgroupAdd(length);
#for i in 4
#for j in 4
            {
                let place = min(at + extractBits(far[$i], $(8 * j)u, 8u), K);
                let value = book[extractBits(codes[$i], $(8 * j)u, 8u) * 32u + copy];
#for c in COLS
                sum$c = fma(value, held[$(c)u * HELD + place], sum$c);
#end
            }
#end
            at += lengths[$i];
#end
            words = next;
        }
#for c in COLS
        let total$c = subgroupAdd(sum$c);
        if (subgroup_lane == 0u && row < N) {
            let i = $(c)u * Y_COL + row * Y_ROW;
            var v = ALPHA * total$c;
            if (HAS_C) { v += BETA * c_at(c_index(i)); }
            y_set(i, v);
        }
#end
    }
}
