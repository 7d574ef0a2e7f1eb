// y[image, m, p] = ALPHA * sum over what is not zero in row m of value * x[image, k, p] + BETA * c. x is stored in planes: of a matrix, k is
// a plane of vectors; of a convolution (channel, tap), and a tap sees the pixel p * STRIDE + tap * DILATION - PAD of its channel's plane.
// Neighbouring lanes have neighbouring pixels, TEAM of them share a row, so that an entry is read from one address and x from neighbouring
// ones. A lane makes MM rows of EACH pixels, or fours of pixels (X_FOURS), TEAM apart. SLICES > 1 (with MM 1): so many teams share a row,
// each takes four of its entries in turn, and their sums meet in workgroup memory.
// Expects: columns, values (pack_pruned.wgsl, pack_entries.wgsl; values as vectors of four), x, c?, y; N K PLACES (of a row) TEAM MM
// EACH SLICES TOTAL (pixels of all images) PIXELS (of an image) X_IMAGE PLANE Y_IMAGE Y_ROW Y_PIXEL C_ROW C_PIXEL (strides) ALPHA BETA.
// X_FOURS: x is bound as vectors, and TOTAL PIXELS X_IMAGE PLANE count those; Y_FOURS: likewise y, Y_IMAGE and Y_ROW.
// WINDOWED: more than one tap, or padding; STRIDED: steps; of both the window, and HEIGHT.. as Window.consts writes them.
const FOURS: u32 = PLACES / 4u;
#if X_FOURS
alias sum_t = vec4<f32>;
#else
alias sum_t = f32;
#end

#if WINDOWED
const TAPS: u32 = WINDOW_Z * WINDOW_Y * WINDOW_X;

// Of a tap in its channel's plane, from the first one.
fn place_of(tap: u32) -> u32 {
    let z = tap / (WINDOW_Y * WINDOW_X);
    let y = tap / WINDOW_X % WINDOW_Y;
    return (z * DILATION_Z * HEIGHT + y * DILATION_Y) * WIDTH + tap % WINDOW_X * DILATION_X;
}

// The taps of a pixel that lie within x, a bit for each.
fn seen_from(front: u32, top: u32, left: u32) -> u32 {
    var seen = 0u;
#for t in WINDOW_Z * WINDOW_Y * WINDOW_X
    if (front + $(t // (WINDOW_Y * WINDOW_X))u * DILATION_Z < DEPTH && top + $(t // WINDOW_X % WINDOW_Y)u * DILATION_Y < HEIGHT
        && left + $(t % WINDOW_X)u * DILATION_X < WIDTH) { seen |= 1u << $(t)u; }
#end
    return seen;
}
#end

#if SLICES > 1
var<workgroup> sums: array<sum_t, $(WORKGROUP_SIZE * EACH)>;
#end

fn grid_main(group: vec3<u32>, lane: u32) {
    let first = (group.y * $(WORKGROUP_SIZE // TEAM // SLICES)u + lane / $(TEAM * SLICES)u) * MM;
    let slice = lane / TEAM % SLICES;
#for j in EACH
    let p$j = group.x * $(TEAM * EACH)u + lane % TEAM + $(j * TEAM)u;
    let image$j = min(p$j, TOTAL - 1u) / PIXELS;
    let pixel$j = min(p$j, TOTAL - 1u) % PIXELS;
#if WINDOWED or STRIDED
    let front$j = pixel$j / (OUT_HEIGHT * OUT_WIDTH) * STRIDE_Z - u32(PAD_Z);     // before the first: wraps to more than there are
    let top$j = pixel$j / OUT_WIDTH % OUT_HEIGHT * STRIDE_Y - u32(PAD_Y);
    let left$j = pixel$j % OUT_WIDTH * STRIDE_X - u32(PAD_X);
    let base$j = image$j * X_IMAGE + (front$j * HEIGHT + top$j) * WIDTH + left$j;
#if WINDOWED
    let seen$j = seen_from(front$j, top$j, left$j);
#end
#else
    let base$j = image$j * X_IMAGE + pixel$j;
#end
#end
#for m in MM
    let row$m = min(first + $(m)u, N - 1u) * FOURS;
#for j in EACH
    var s$(m)_$j = sum_t();
#end
#end
    for (var q = slice; q < FOURS; q += SLICES) {
        var ended = true;
#for m in MM
        let w$m = values_at4(row$m + q);
        let low$m = columns_at(2u * (row$m + q));
        let high$m = columns_at(2u * (row$m + q) + 1u);
        let k$m = vec4<u32>(low$m & 0xffffu, low$m >> 16u, high$m & 0xffffu, high$m >> 16u);
#end
#for m in MM
        if (k$m.w < K) {    // columns ascend, and a place without a value has none
            ended = false;
#for i in 4
            {
#include sparse_entry.wgsl
            }
#end
        } else {
#for i in 3
            if (k$m[$i] < K) {
#include sparse_entry.wgsl
            }
#end
        }
#end
        if (ended) { break; }
    }
#if SLICES > 1
#for j in EACH
    sums[$(j * WORKGROUP_SIZE)u + lane] = s0_$j;
#end
    workgroupBarrier();
    if (slice > 0u) { return; }
#for j in EACH
#for t in SLICES - 1
    s0_$j += sums[$(j * WORKGROUP_SIZE + (t + 1) * TEAM)u + lane];
#end
#end
#end
#for m in MM
#for j in EACH
    if (p$j < TOTAL && first + $(m)u < N) {
        let row = first + $(m)u;
        let at = image$j * Y_IMAGE + row * Y_ROW;
#if Y_FOURS
        y_set4(at + pixel$j, ALPHA * s$(m)_$j + BETA * c_at(row * C_ROW));
#else
#if X_FOURS
#for l in 4
        y_set(at + (4u * pixel$j + $(l)u) * Y_PIXEL, ALPHA * s$(m)_$j[$l] + BETA * c_at(row * C_ROW + (4u * pixel$j + $(l)u) * C_PIXEL));
#end
#else
        y_set(at + pixel$j * Y_PIXEL, ALPHA * s$(m)_$j + BETA * c_at(row * C_ROW + pixel$j * C_PIXEL));
#end
#end
    }
#end
#end
}
