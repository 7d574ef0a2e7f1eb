// What a step of a cache that keeps a window of tokens begins with: its batches' positions, and how many tokens it attends to.
// A cache of CAPACITY rows holds after T tokens the latest resident(T), in order, from row 0 on; `staged` counts those before this step and
// this step's, less one.
// Expects: lengths ([BATCH]: tokens with this step, less one), staged ([BATCH]), places ([BATCH, SEQUENCE]), given? (likewise: positions
// that the model has, GIVEN); BATCH SEQUENCE TOTAL FIRST CAPACITY WINDOW.
// Source: GroupQueryAttention of ONNX Runtime (com.microsoft), sliding_window_cache.
#include tokens_before.wgsl
#include resident_rows.wgsl

fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= BATCH * SEQUENCE) { return; }
    let b = i / SEQUENCE;
    let before = tokens_before(b);
#if GIVEN
    places_set(i, i32(given_at(i)));
#else
    places_set(i, i32(before + i % SEQUENCE));
#end
#if FIRST
    let with_this = clamp(lengths_at(b) + 1, 1, i32(SEQUENCE));
#else
    let with_this = i32(resident(before) + SEQUENCE);
#end
    if (i % SEQUENCE == 0u) { staged_set(b, with_this - 1); }
}
