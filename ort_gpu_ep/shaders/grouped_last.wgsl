// y[row, m] = sum over taps, c of x[pixel of the tap, channel c of m's group] * w[(tap, c), m] + bias[m]: several groups, channels together.
// A lane makes four channels of PIXELS neighbours in a row of pixels; neighbouring lanes have neighbouring channels. SLICES lanes share the
// (tap, four channels) of those, and add up through workgroup memory. The loads of AHEAD steps are under way at a time; what lies outside
// the image, or after the last step, is read at another place, and counts as zero.
// Expects: x [image, HEIGHT, WIDTH, ROW4], w [(tap, c), M4], c? [M4], y [image, OUT_HEIGHT, OUT_WIDTH, M4] as vectors; LINES (rows
// of pixels), BLOCKS (of PIXELS in one), C4 and G4 (of a group, in and out), ROW4, M4 (of all), TEAM (lanes of a slice), AHEAD, and what
// Window.consts writes.
const STEPS: u32 = $(WINDOW_Y * WINDOW_X * C4)u;
#if SLICES > 1
var<workgroup> parts: array<vec4<f32>, $(PIXELS * WORKGROUP_SIZE)>;
#end

fn grid_main(group: vec3<u32>, lane: u32) {
    let slice = lane / TEAM;
    let item = group.x * TEAM + lane % TEAM;
    let m = item % M4;
    let block = item / M4;
    let valid = block < LINES * BLOCKS;
    let line = min(block, LINES * BLOCKS - 1u) / BLOCKS;
    let ox = block % BLOCKS * PIXELS;
    let top = i32(line % OUT_HEIGHT * STRIDE_Y) - i32(PAD_Y);
    let left = i32(ox * STRIDE_X) - i32(PAD_X);
    let base = i32(line / OUT_HEIGHT * HEIGHT);
    let channel = i32(m / G4 * C4);
#for p in PIXELS
    var s$p = vec4<f32>();
#end
    for (var first = slice; first < STEPS; first += $(SLICES * AHEAD)u) {
#for u in AHEAD
        let step$u = min(first + $(u * SLICES)u, STEPS - 1u);
        let tap$u = step$u / C4;
        let y$u = top + i32(tap$u / WINDOW_X * DILATION_Y);
        let x$u = left + i32(tap$u % WINDOW_X * DILATION_X);
        let within$u = first + $(u * SLICES)u < STEPS && u32(y$u) < HEIGHT;
        let start$u = ((base + y$u) * i32(WIDTH) + x$u) * i32(ROW4) + channel + i32(step$u % C4);
#for k in 4
        let w$(u)_$k = w_at4((step$u * 4u + $(k)u) * M4 + m);
#end
#for p in PIXELS
        let within$(u)_$p = within$u && u32(x$u + $(p * STRIDE_X)) < WIDTH;
        let v$(u)_$p = select(vec4<f32>(), x_at4(u32(select(0, start$u + $(p * STRIDE_X) * i32(ROW4), within$(u)_$p))), within$(u)_$p);
#end
#end
#for u in AHEAD
#for p in PIXELS
#for k in 4
        s$p = fma(vec4<f32>(v$(u)_$p[$k]), w$(u)_$k, s$p);
#end
#end
#end
    }
    let to = (line * OUT_WIDTH + ox) * M4 + m;
#if SLICES > 1
#for p in PIXELS
    parts[$(p)u * WORKGROUP_SIZE + lane] = s$p;
#end
    workgroupBarrier();
#for p in PIXELS
    if (slice == $(p % SLICES)u && valid && ox + $(p)u < OUT_WIDTH) {
        var sum = parts[$(p)u * WORKGROUP_SIZE + lane % TEAM];
#for s in SLICES - 1
        sum += parts[$(p)u * WORKGROUP_SIZE + $(s + 1)u * TEAM + lane % TEAM];
#end
#if HAS_C
        sum += c_at4(m);
#end
        y_set4(to + $(p)u * M4, sum);
    }
#end
#else
#for p in PIXELS
    if (valid && ox + $(p)u < OUT_WIDTH) {
#if HAS_C
        s$p += c_at4(m);
#end
        y_set4(to + $(p)u * M4, s$p);
    }
#end
#end
}
