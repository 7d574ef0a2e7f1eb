// For each line of a matrix the power of two that brings its largest finite magnitude into [2^14, 2^15), or LESS powers lower, within 2^-120 .. 2^120: times it
// no number of the line is beyond float16, and those within 2^29 of the largest keep all of float16's digits. 2^120 for a line of zeros.
// TEAM lanes go along a line; a workgroup has SIDE = WORKGROUP_SIZE / TEAM of them, neighbours next to each other where ACROSS.
// Expects: x, scales [BATCH, LINES]; x_base(b); LINE, STEP the strides between lines and along them; LENGTH of a line.
#include scale_of.wgsl
var<workgroup> most: array<atomic<u32>, $(WORKGROUP_SIZE // TEAM)>;

fn group_main(group: u32, lane: u32) {
#let side = WORKGROUP_SIZE // TEAM
#if ACROSS
    let own = lane % $(side)u;
    let first = lane / $(side)u;
#else
    let own = lane / TEAM;
    let first = lane % TEAM;
#end
    let line = group * $(side)u + own;
    var largest = 0u;
    if (line < BATCH * LINES) {
        let start = x_base(line / LINES) + line % LINES * LINE;
        for (var k = first; k < LENGTH; k += $(8 * TEAM)u) {
#for u in 8
            var bits$u = 0u;
            if (k + $(u * TEAM)u < LENGTH) { bits$u = bitcast<u32>(x_at(start + (k + $(u * TEAM)u) * STEP)) & 0x7fffffffu; }
#end
#for u in 8
            if (bits$u < 0x7f800000u) { largest = max(largest, bits$u); }
#end
        }
    }
    if (first == 0u) { atomicStore(&most[own], 0u); }
    workgroupBarrier();
    atomicMax(&most[own], largest);
    workgroupBarrier();
    if (first == 0u && line < BATCH * LINES) {
        scales_set(line, scale_of(atomicLoad(&most[own]), i32(LESS)));
    }
}
