// Back through a recurrent layer, from its last step to its first: a workgroup has one batch row. A lane owns hidden unit j (and
// j + WIDTH, ...) and sums one of SLICES parts of what the step's gates give back to the state before it.
// Expects: dy [T, B, H], dht [B, H]; r [GATES * H, H], and of the cell: LSTM gates (i, o, f, g) [T, B, 4 H], cells, before [T, B, H],
//   dct [B, H]; GRU gates (z, r, n) [T, B, 3 H], before [T, B, H] and q (the state's share of the candidate) or, where the reset comes
//   first, rh [H, H], r then being [2 H, H]; RNN slope [T, B, H]. Writes da [T, B, GATES * H], dh0 and, for LSTM, dc0 [B, H].
//   CELL: 0 RNN, 1 GRU (reset after the product), 2 LSTM, 3 GRU (reset first).
// Source: the bodies of the functions of training/functions.py.
const UNITS: u32 = (H + WIDTH - 1u) / WIDTH;
var<workgroup> da_of: array<f32, GATES * H>;
#if SLICES > 1
var<workgroup> parts: array<f32, WORKGROUP_SIZE>;
#end

fn own(u: u32, lane: u32) -> u32 {
    return lane % WIDTH + u * WIDTH;
}

// The lane's part of the sum over k < COUNT of da_of[first + k] * weights[k, j]; lanes below WIDTH get the whole.
#for m in 1 + (CELL == 3)
fn back$m(first: u32, count: u32, j: u32, lane: u32) -> f32 {
    let span = (count + SLICES - 1u) / SLICES;
    let begin = lane / WIDTH * span;
    let end = min(begin + span, count);
    var a = 0.0;
    var b = 0.0;
    var c = 0.0;
    var d = 0.0;
    var k = begin;
    for (; k + 4u <= end; k += 4u) {
        a += da_of[first + k] * weight$m(k * H + j);
        b += da_of[first + k + 1u] * weight$m((k + 1u) * H + j);
        c += da_of[first + k + 2u] * weight$m((k + 2u) * H + j);
        d += da_of[first + k + 3u] * weight$m((k + 3u) * H + j);
    }
    for (; k < end; k++) { a += da_of[first + k] * weight$m(k * H + j); }
    var total = (a + b) + (c + d);
#if SLICES > 1
    parts[lane] = total;
    workgroupBarrier();
    if (lane < WIDTH) { for (var i = lane + WIDTH; i < WORKGROUP_SIZE; i += WIDTH) { total += parts[i]; } }
    workgroupBarrier();
#end
    return total;
}
#end
fn weight0(i: u32) -> f32 { return r_at(i); }
#if CELL == 3
fn weight1(i: u32) -> f32 { return rh_at(i); }
#end

fn store(row: u32, gate: u32, j: u32, v: f32) {
    da_set((row * GATES + gate) * H + j, v);
}

fn group_main(group: u32, lane: u32) {
    var dh: array<f32, UNITS>;
    var kept: array<f32, UNITS>;
#if CELL == 2
    var dc: array<f32, UNITS>;
#end
#if CELL == 3
    var slope: array<f32, UNITS>;
#end
    let owner = lane < WIDTH;
    for (var u = 0u; u < UNITS; u++) {
        let j = own(u, lane);
        if (owner && j < H) {
            dh[u] = dht_at(group * H + j);
#if CELL == 2
            dc[u] = dct_at(group * H + j);
#end
        }
    }
    for (var step = 0u; step < T; step++) {
        let row = (T - 1u - step) * B + group;
        for (var u = 0u; u < UNITS; u++) {
            let j = own(u, lane);
            if (owner && j < H) {
                let g = dy_at(row * H + j) + dh[u];
#if CELL == 0
                let a = g * slope_at(row * H + j);
                da_of[j] = a;
                store(row, 0u, j, a);
                kept[u] = 0.0;
#end
#if CELL == 2
                let at = row * 4u * H + j;
                let i = gates_at(at);
                let o = gates_at(at + H);
                let f = gates_at(at + 2u * H);
                let n = gates_at(at + 3u * H);
                let t = tanh_f32(cells_at(row * H + j));
                let dcell = dc[u] + g * (o * (1.0 - t * t));
                let ai = dcell * n * (i * (1.0 - i));
                let ao = g * t * (o * (1.0 - o));
                let af = dcell * before_at(row * H + j) * (f * (1.0 - f));
                let an = dcell * i * (1.0 - n * n);
                da_of[j] = ai;
                da_of[H + j] = ao;
                da_of[2u * H + j] = af;
                da_of[3u * H + j] = an;
                store(row, 0u, j, ai);
                store(row, 1u, j, ao);
                store(row, 2u, j, af);
                store(row, 3u, j, an);
                dc[u] = dcell * f;
                kept[u] = 0.0;
#end
#if CELL == 1
                let at = row * 3u * H + j;
                let z = gates_at(at);
                let r = gates_at(at + H);
                let n = gates_at(at + 2u * H);
                let an = g * (1.0 - z) * (1.0 - n * n);
                let az = g * (before_at(row * H + j) - n) * (z * (1.0 - z));
                let ar = an * q_at(row * H + j) * (r * (1.0 - r));
                da_of[j] = az;
                da_of[H + j] = ar;
                da_of[2u * H + j] = an * r;
                store(row, 0u, j, az);
                store(row, 1u, j, ar);
                store(row, 2u, j, an);
                kept[u] = g * z;
#end
#if CELL == 3
                let at = row * 3u * H + j;
                let z = gates_at(at);
                let r = gates_at(at + H);
                let n = gates_at(at + 2u * H);
                let an = g * (1.0 - z) * (1.0 - n * n);
                let az = g * (before_at(row * H + j) - n) * (z * (1.0 - z));
                da_of[j] = az;
                da_of[2u * H + j] = an;
                store(row, 0u, j, az);
                store(row, 2u, j, an);
                kept[u] = g * z;
                slope[u] = r;
#end
            }
        }
        workgroupBarrier();
#if CELL == 3
        for (var u = 0u; u < UNITS; u++) {
            let j = own(u, lane);
            let reset = back1(2u * H, H, min(j, H - 1u), lane);
            if (owner && j < H) {
                let r = slope[u];
                let ar = reset * before_at(row * H + j) * (r * (1.0 - r));
                da_of[H + j] = ar;
                store(row, 1u, j, ar);
                kept[u] += reset * r;
            }
        }
        workgroupBarrier();
#end
        for (var u = 0u; u < UNITS; u++) {
            let total = back0(0u, COUNT, min(own(u, lane), H - 1u), lane);
            dh[u] = kept[u] + total;
        }
        workgroupBarrier();
    }
    for (var u = 0u; u < UNITS; u++) {
        let j = own(u, lane);
        if (owner && j < H) {
            dh0_set(group * H + j, dh[u]);
#if CELL == 2
            dc0_set(group * H + j, dc[u]);
#end
        }
    }
}
