// y[i, j][tile, c] = (B^T d B)[i, j], d the 6 x 6 pixels of x around a tile of 4 x 4 outputs, zero outside of the image: Winograd's
// F(4 x 4, 3 x 3) over the points 0, a, -a, b, -b and infinity, a = 3/4 and b = 3/2. The squares of both, and all that follows, are exact
// in float32. A lane makes four channels of a tile; neighbouring lanes have neighbouring channels.
// Expects: x [image, HEIGHT, WIDTH, C4], y [36, TILES, C4] as vectors; TILES (of all images) TILES_Y TILES_X (of one) C4 HEIGHT WIDTH
// PAD_Y PAD_X.
const A: f32 = 0.75;
const B: f32 = 1.5;
const LANES: u32 = TILES * C4;

fn grid_main(group: vec3<u32>, lane: u32) {
    let i = group.x * WORKGROUP_SIZE + lane;
    if (i >= LANES) { return; }
    let channel = i % C4;
    let tile = i / C4;
    let image = tile / (TILES_Y * TILES_X);
    let place = tile - image * (TILES_Y * TILES_X);
    let ty = place / TILES_X;
    let top = i32(ty * 4u) - i32(PAD_Y);
    let left = i32((place - ty * TILES_X) * 4u) - i32(PAD_X);
#for r in 6
    let row$r = (image * HEIGHT + u32(clamp(top + $r, 0, i32(HEIGHT) - 1))) * WIDTH;
    let in_y$r = u32(top + $r) < HEIGHT;
#end
#for s in 6
    let column$s = u32(clamp(left + $s, 0, i32(WIDTH) - 1));
    let in_x$s = u32(left + $s) < WIDTH;
#end
#for s in 6
#for r in 6
    let d$(r)_$s = select(vec4<f32>(), x_at4((row$r + column$s) * C4 + channel), in_y$r && in_x$s);
#end
#end
#for s in 6
    let e$s = d4_$s - (B * B) * d2_$s;
    let f$s = A * (d3_$s - (B * B) * d1_$s);
    let g$s = d4_$s - (A * A) * d2_$s;
    let h$s = B * (d3_$s - (A * A) * d1_$s);
    let t0_$s = (A * A * B * B) * d0_$s - (A * A + B * B) * d2_$s + d4_$s;
    let t1_$s = e$s + f$s;
    let t2_$s = e$s - f$s;
    let t3_$s = g$s + h$s;
    let t4_$s = g$s - h$s;
    let t5_$s = (A * A * B * B) * d1_$s - (A * A + B * B) * d3_$s + d5_$s;
#end
#for r in 6
    {
        let e = t$(r)_4 - (B * B) * t$(r)_2;
        let f = A * (t$(r)_3 - (B * B) * t$(r)_1);
        let g = t$(r)_4 - (A * A) * t$(r)_2;
        let h = B * (t$(r)_3 - (A * A) * t$(r)_1);
        let at = $(r * 6)u * LANES + i;
        y_set4(at, (A * A * B * B) * t$(r)_0 - (A * A + B * B) * t$(r)_2 + t$(r)_4);
        y_set4(at + LANES, e + f);
        y_set4(at + 2u * LANES, e - f);
        y_set4(at + 3u * LANES, g + h);
        y_set4(at + 4u * LANES, g - h);
        y_set4(at + 5u * LANES, (A * A * B * B) * t$(r)_1 - (A * A + B * B) * t$(r)_3 + t$(r)_5);
    }
#end
}
