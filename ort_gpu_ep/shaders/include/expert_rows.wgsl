// Which rows a workgroup has: of expert e the `begin`th by expert to that before `end`, at most TJ; it returns where there are none. An expert whose rows
// begin at s has the tiles from s / TJ + e on: enough for all, and some of none.
// Expects: tile; places (as group_experts.wgsl has them), EXPERTS, TJ.
    var e = 0u;
    var above = EXPERTS;
    while (above - e > 1u) {
        let middle = (e + above) / 2u;
        if (u32(places_at(middle)) / TJ + middle <= tile) { e = middle; } else { above = middle; }
    }
    let start = u32(places_at(e));
    let begin = start + (tile - start / TJ - e) * TJ;
    let end = u32(places_at(e + 1u));
    if (begin >= end) { return; }
