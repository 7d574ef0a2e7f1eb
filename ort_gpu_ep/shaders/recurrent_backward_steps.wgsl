// Back through a recurrent layer as recurrent_backward.wgsl goes, a dispatch a step and one behind the last, over all of the GPU, shared out
// as in recurrent_steps.wgsl; a GRU whose reset comes first takes two a step.
// Expects: what recurrent_backward.wgsl does, but for r and rh packed (what recurrent_transposed.wgsl packs, by four if VECTORS); ticks [GROUPS]; state: what steps give back to the one before, of the last step and of
//   this one [2, B, GATES, H], then of a GRU what of dh goes past its gates, of an LSTM the cell's gradient [B, H]; ROWS UNITS SHARE RUNS
//   SUBGROUPS as recurrent_steps.wgsl.
// Source: the bodies of the functions of training/functions.py.
const COVERED: u32 = SHARE * UNITS;
const BLOCKS: u32 = (H + COVERED - 1u) / COVERED;
const GIVEN: u32 = B * GATES * H;
const HALVES: bool = CELL == 3u;
#let HAS_H0 = 0

fn before0(i: u32) -> f32 { return state_at(i); }
fn before1(i: u32) -> f32 { return 0.0; }
#include recurrent_fours.wgsl

fn group_main(group: u32, lane: u32) {
    let tick = ticks_at(group);
    let step = select(tick, tick / 2u, HALVES);
    let second = HALVES && tick % 2u == 1u;             // half of a step, whose sums are the resets'
    let given = step % 2u * GIVEN;                      // what this step gives back
    let unit = group / RUNS * COVERED;
#if SUBGROUPS
    let team = subgroup_id;
    let l = subgroup_lane;
#else
    let team = lane / 32u;
    let l = lane % 32u;
#end
    let gate = team % GATES;
    let own = unit + team / GATES * UNITS;
    let is_first = step == 0u && !second;
    let works = !HALVES || (gate == 2u) == second;
#for u in UNITS
    let row$u = gate * H + min(own + $(u)u, H - 1u);
#end
    for (var from_row = group % RUNS * ROWS; from_row < B; from_row += RUNS * ROWS) {
#for r in ROWS
        let from0_$r = select(GIVEN - given, given, second) + (min(from_row + $(r)u, B - 1u) * GATES + gate) * H;
#end
#include recurrent_sums.wgsl
        let j = unit + lane / ROWS;
        let b = from_row + lane % ROWS;
        if (lane < COVERED * ROWS && j < H && b < B) {
            var total = 0.0;
            for (var q = 0u; q < GATES; q++) {
                total += sums[(((j - unit) / UNITS * GATES + q) * UNITS + (j - unit) % UNITS) * ROWS + lane % ROWS];
            }
            go_back(step, second, b, j, given + b * GATES * H + j, 2u * GIVEN + b * H + j, total);
        }
        workgroupBarrier();
    }
    storageBarrier();
    let dispatches = select(T + 1u, 2u * T + 1u, HALVES);
    if (lane == 0u) { ticks_set(group, select(tick + 1u, 0u, tick + 1u == dispatches)); }
}

// A unit of a row in a step, or in one of its halves. give: where its first gate is of what the step gives back; kept: its place behind
// that; total: of the gates that the step after it gave back.
fn go_back(step: u32, second: bool, b: u32, j: u32, give: u32, kept: u32, total: f32) {
    var dh = total;
    if (step == 0u) { dh = dht_at(b * H + j); }
#if CELL == 1 or CELL == 3
    if (step > 0u) { dh += state_at(kept); }
#end
#if CELL == 2
    var dc = state_at(kept);
    if (step == 0u) { dc = dct_at(b * H + j); }
#end
    if (step == T) {
        dh0_set(b * H + j, dh);
#if CELL == 2
        dc0_set(b * H + j, dc);
#end
        return;
    }
    let row = (T - 1u - step) * B + b;
    let one = row * H + j;
    let at = row * GATES * H + j;
#if CELL == 3
    if (second) {
        let r = gates_at(at + H);
        let ar = total * before_at(one) * (r * (1.0 - r));
        da_set(at + H, ar);
        state_set(give + H, ar);
        state_set(kept, state_at(kept) + total * r);
        return;
    }
#end
    let g = dy_at(one) + dh;
#if CELL == 0
    let a = g * slope_at(one);
    da_set(at, a);
    state_set(give, a);
#end
#if CELL == 1 or CELL == 3
    let z = gates_at(at);
    let n = gates_at(at + 2u * H);
    let an = g * (1.0 - z) * (1.0 - n * n);
    let az = g * (before_at(one) - n) * (z * (1.0 - z));
    da_set(at, az);
    da_set(at + 2u * H, an);
    state_set(give, az);
    state_set(kept, g * z);
#if CELL == 3
    state_set(give + 2u * H, an);
#else
    let r = gates_at(at + H);
    let ar = an * q_at(one) * (r * (1.0 - r));
    da_set(at + H, ar);
    state_set(give + H, ar);
    state_set(give + 2u * H, an * r);
#end
#end
#if CELL == 2
    let i = gates_at(at);
    let o = gates_at(at + H);
    let f = gates_at(at + 2u * H);
    let n = gates_at(at + 3u * H);
    let t = tanh_f32(cells_at(one));
    let dcell = dc + g * (o * (1.0 - t * t));
    let ai = dcell * n * (i * (1.0 - i));
    let ao = g * t * (o * (1.0 - o));
    let af = dcell * before_at(one) * (f * (1.0 - f));
    let an = dcell * i * (1.0 - n * n);
    da_set(at, ai);
    da_set(at + H, ao);
    da_set(at + 2u * H, af);
    da_set(at + 3u * H, an);
    state_set(give, ai);
    state_set(give + H, ao);
    state_set(give + 2u * H, af);
    state_set(give + 3u * H, an);
    state_set(kept, dcell * f);
#end
}
