// y[image, 4 ty + i, 4 tx + j, m] = (A^T p A)[i, j] + c[m], p the 6 x 6 sums of tile (image, ty, tx) and filter m, over the points of
// winograd_input.wgsl. A lane makes four filters of a tile; neighbouring lanes have neighbouring filters.
// Expects: p [36, TILES, M4], c? [M4], y [image, OUT_HEIGHT, OUT_WIDTH, M4] as vectors; TILES TILES_Y TILES_X M4 OUT_HEIGHT OUT_WIDTH.
const A: f32 = 0.75;
const B: f32 = 1.5;
const LANES: u32 = TILES * M4;

fn grid_main(group: vec3<u32>, lane: u32) {
    let i = group.x * WORKGROUP_SIZE + lane;
    if (i >= LANES) { return; }
    let m = i % M4;
    let tile = i / M4;
    let image = tile / (TILES_Y * TILES_X);
    let place = tile - image * (TILES_Y * TILES_X);
    let ty = place / TILES_X;
    let top = ty * 4u;
    let left = (place - ty * TILES_X) * 4u;
#for s in 6
#for r in 6
    let p$(r)_$s = p_at4($(r * 6 + s)u * LANES + i);
#end
#end
#for s in 6
    let e$s = p1_$s + p2_$s;
    let f$s = p1_$s - p2_$s;
    let g$s = p3_$s + p4_$s;
    let h$s = p3_$s - p4_$s;
    let t0_$s = p0_$s + e$s + g$s;
    let t1_$s = A * f$s + B * h$s;
    let t2_$s = (A * A) * e$s + (B * B) * g$s;
    let t3_$s = (A * A * A) * f$s + (B * B * B) * h$s + p5_$s;
#end
    var c = vec4<f32>();
#if HAS_C
    c = c_at4(m);
#end
#for r in 4
    {
        let e = t$(r)_1 + t$(r)_2;
        let f = t$(r)_1 - t$(r)_2;
        let g = t$(r)_3 + t$(r)_4;
        let h = t$(r)_3 - t$(r)_4;
        let row = (image * OUT_HEIGHT + min(top + $(r)u, OUT_HEIGHT - 1u)) * OUT_WIDTH;
#for s in 4
        let at$s = (row + min(left + $(s)u, OUT_WIDTH - 1u)) * M4 + m;
#end
        let y0 = y_final4(at0, t$(r)_0 + e + g + c);
        let y1 = y_final4(at1, A * f + B * h + c);
        let y2 = y_final4(at2, (A * A) * e + (B * B) * g + c);
        let y3 = y_final4(at3, (A * A * A) * f + (B * B * B) * h + t$(r)_5 + c);
        if (top + $(r)u < OUT_HEIGHT) {
            y_store4(at0, y0);
#for s in 3
            if (left + $(s + 1)u < OUT_WIDTH) { y_store4(at$(s + 1), y$(s + 1)); }
#end
        }
    }
#end
}
