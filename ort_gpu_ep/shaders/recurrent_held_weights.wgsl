// packed = what each lane of recurrent_held.wgsl holds of one layer, in the order in which it reads them: [direction, vector v, element e
// of it, unit j, lane q of it, gate], the weights of element e of vector q + 4 v of the layer's input (IN_VECS vectors) and state (HV);
// then the biases, [direction, unit, gate]. Zero where there is none.
// Expects: w [directions, GATES * H, INPUTS], r [directions, GATES * H, H], b? [directions, 2 * GATES * H], packed;
//   CELL (1 GRU, 2 LSTM): the GRU's last gate is two, of the input and of the state.
const WEIGHTS: u32 = DIRECTIONS * VECS * 4u * 4u * H * 4u;

fn bias(d: u32, j: u32, gate: u32) -> f32 {
    let from_w = d * 2u * GATES * H + min(gate, GATES - 1u) * H + j;
    if (CELL == 1u && gate == 2u) { return b_at(from_w); }
    if (CELL == 1u && gate == 3u) { return b_at(from_w + GATES * H); }
    return b_at(from_w) + b_at(from_w + GATES * H);
}

fn weight(d: u32, j: u32, gate: u32, vector: u32, e: u32) -> f32 {
    let row = (d * GATES + min(gate, GATES - 1u)) * H + j;
    if (vector < IN_VECS) {
        let k = 4u * vector + e;
        if (k >= INPUTS || (CELL == 1u && gate == 3u)) { return 0.0; }
        return w_at(row * INPUTS + k);
    }
    let k = 4u * (vector - IN_VECS) + e;
    if (k >= H || (CELL == 1u && gate == 2u)) { return 0.0; }
    return r_at(row * H + k);
}

fn element(i: u32) -> packed_t {
    let gate = i % 4u;
    if (i >= WEIGHTS) { return bias((i - WEIGHTS) / (4u * H), (i - WEIGHTS) / 4u % H, gate); }
    let q = i / 4u % 4u;
    let k = i / (16u * H);
    return weight(k / (4u * VECS), i / 16u % H, gate, q + 4u * (k / 4u % VECS), k % 4u);
}
