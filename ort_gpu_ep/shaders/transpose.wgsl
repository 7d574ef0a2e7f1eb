// y[y_place(t) + a * PITCH + b] = x[x_place(t) + x_row(b) + a]: neighbours of x, along a, end up far apart, and neighbours of y, along b, come
// from far apart. A workgroup moves TILE_A x TILE_B of them, so that it reads runs of x and writes runs of y.
// BLOCKS: 4 x 4 an invocation (WIDE: 16 x 4), in registers, by vectors or words on both sides. Else through workgroup memory, where rows of
// odd length keep invocations out of each other's banks.
// Expects: x, y, x_place and y_place (over t), x_row (over b); A B PITCH TILES_A TILES_B TILE_A TILE_B, RAW (no steps: bits are moved),
// SIGNED, WORDS (y's elements share words, each of which belongs to one run).
#if BLOCKS
#let wide = 16 if WIDE else 4
fn group_main(group: u32, lane: u32) {
    let t = group / (TILES_A * TILES_B);
    let a = group / TILES_B % TILES_A * TILE_A + lane % $(TILE_A // wide)u * $(wide)u;
    let b = group % TILES_B * TILE_B + lane / $(TILE_A // wide)u * 4u;
    if (a >= A || b >= B) { return; }
    let start = x_place(t) + a;
    let end = y_place(t) + a * PITCH + b;
#if RAW and X_BITS == 8
#for j in 4
#if WIDE
    let v$j = x_word4((start + x_row(b + $(j)u)) / 16u);
#else
    let v$j = vec4<u32>(x_word((start + x_row(b + $(j)u)) / 4u));
#end
#end
#for w in wide // 4
    let even0_$w = (v0[$w] & 0xff00ffu) | ((v1[$w] & 0xff00ffu) << 8u);
    let even2_$w = (v2[$w] & 0xff00ffu) | ((v3[$w] & 0xff00ffu) << 8u);
    let odd0_$w = ((v0[$w] >> 8u) & 0xff00ffu) | (v1[$w] & 0xff00ff00u);
    let odd2_$w = ((v2[$w] >> 8u) & 0xff00ffu) | (v3[$w] & 0xff00ff00u);
    let to$w = end + $(4 * w)u * PITCH;
    y_store_word(to$w / 4u, (even0_$w & 0xffffu) | (even2_$w << 16u));
    y_store_word((to$w + PITCH) / 4u, (odd0_$w & 0xffffu) | (odd2_$w << 16u));
    y_store_word((to$w + 2u * PITCH) / 4u, (even0_$w >> 16u) | (even2_$w & 0xffff0000u));
    y_store_word((to$w + 3u * PITCH) / 4u, (odd0_$w >> 16u) | (odd2_$w & 0xffff0000u));
#end
#else
#if RAW and X_BITS == 16
#for j in 4
    let at$j = (start + x_row(b + $(j)u)) / 2u;
    let v$j = vec2<u32>(x_word(at$j), x_word(at$j + 1u));
#end
    let even0 = (v0 & vec2<u32>(0xffffu)) | (v1 << vec2<u32>(16u));
    let even2 = (v2 & vec2<u32>(0xffffu)) | (v3 << vec2<u32>(16u));
    let odd0 = (v0 >> vec2<u32>(16u)) | (v1 & vec2<u32>(0xffff0000u));
    let odd2 = (v2 >> vec2<u32>(16u)) | (v3 & vec2<u32>(0xffff0000u));
#for j in 2
    let to$j = (end + $(2 * j)u * PITCH) / 2u;
    y_store_word(to$j, even0[$j]);
    y_store_word(to$j + 1u, even2[$j]);
    y_store_word(to$j + PITCH / 2u, odd0[$j]);
    y_store_word(to$j + PITCH / 2u + 1u, odd2[$j]);
#end
#else
#for j in 4
#if X_BITS == 32
    let v$j = x_at4((start + x_row(b + $(j)u)) / 4u);
#else
#if SIGNED
    let v$j = unpack4xI8(x_word((start + x_row(b + $(j)u)) / 4u));
#else
    let v$j = unpack4xU8(x_word((start + x_row(b + $(j)u)) / 4u));
#end
#end
#end
#for j in 4
#if Y_BITS == 32
    y_set4((end + $(j)u * PITCH) / 4u, vec4<y_t>(v0[$j], v1[$j], v2[$j], v3[$j]));
#else
    y_set_word((end + $(j)u * PITCH) / 4u, vec4<y_t>(v0[$j], v1[$j], v2[$j], v3[$j]));
#end
#end
#end
#end
}
#else
#let row = TILE_A + 1
#let per = 32 // Y_BITS if WORDS else 1
var<workgroup> tile: array<x_t, $(TILE_B * row)>;

fn group_main(group: u32, lane: u32) {
    let t = group / (TILES_A * TILES_B);
    let a = group / TILES_B % TILES_A * TILE_A;
    let b = group % TILES_B * TILE_B;
    let start = x_place(t) + a;
    let end = y_place(t) + a * PITCH + b;
    let along = lane % TILE_A;
#for i in TILE_A * TILE_B // WORKGROUP_SIZE
    let j$i = lane / TILE_A + $(i * (WORKGROUP_SIZE // TILE_A))u;
    if (b + j$i < B && a + along < A) { tile[j$i * $(row)u + along] = x_at(start + x_row(b + j$i) + along); }
#end
    workgroupBarrier();
    let across = lane % $(TILE_B // per)u * $(per)u;
#for i in TILE_A * TILE_B // per // WORKGROUP_SIZE
    let k$i = lane / $(TILE_B // per)u + $(i * (WORKGROUP_SIZE * per // TILE_B))u;
    if (a + k$i < A && b + across < B) {
        let at$i = end + k$i * PITCH + across;
#if per == 1
        y_set(at$i, tile[across * $(row)u + k$i]);
#else
#for e in per
        let v$(i)_$e = tile[(across + $(e)u) * $(row)u + k$i];
#end
#if RAW and per == 4
        y_store_word(at$i / 4u, v$(i)_0 | (v$(i)_1 << 8u) | (v$(i)_2 << 16u) | (v$(i)_3 << 24u));
#else
#if RAW
        y_store_word(at$i / 2u, v$(i)_0 | (v$(i)_1 << 16u));
#else
        y_set_word(at$i / 4u, vec4<y_t>(v$(i)_0, v$(i)_1, v$(i)_2, v$(i)_3));
#end
#end
#end
    }
#end
}
#end
