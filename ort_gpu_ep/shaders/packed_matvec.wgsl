// y[c, n] = ALPHA * sum over k of weight[n, k] * x[c, k] + BETA * bias for COLS vectors c, the weights read as they are packed.
// A word holds the codes of PER rows at one k, and four words those at four: an invocation reads x once for all of them. WORKGROUP_SIZE
// invocations share K, neighbours read neighbouring words, and each has VEC reads under way.
// weight[n, k] = (code - zero) * scale, a scale (and zero) for BLOCK codes of a row, or with BLOCK 0 for the row; or CODEBOOK: table[code].
// Expects: w (as vectors; WORDS words for each PER rows, interleaved by repack.wgsl; codes of BITS, the first row's in the low bits), x,
// table (scales of rows, or a codebook of TABLE_SIZE <= ENTRIES = 2^bits values), zp?, or for blocks scales (as vectors, by
// interleave_scales.wgsl) and zeros? (words of the zero points of PER rows), c?, y; N K COLS PER VEC, COPY_BITS (2^COPY_BITS copies of the
// codebook), BLOCK BLOCKS, HAS_ZEROS, HALVES (unpack2x16float keeps what is below 2^-14: two codes at a time are read as such numbers),
// TABLE_ROW TABLE_BLOCK (strides of the scales), ZP_BITS (codes in bytes; 0: elements), ZP_ROW ZP_BLOCK, ZERO (added to each zero point),
// WHOLE (all zero points are whole numbers), X4, X_COL X_K (strides), Y_COL Y_ROW, c_index, ALPHA BETA, SUBGROUPS.
const WORDS4: u32 = WORDS / 4u;
const OUTPUTS: u32 = PER * COLS;
#if SUBGROUPS
const PARTS: u32 = WORKGROUP_SIZE / 4u;    // a subgroup has four invocations at least
#else
const PARTS: u32 = WORKGROUP_SIZE;
#end
var<workgroup> sums: array<f32, PARTS * OUTPUTS>;
#if CODEBOOK
const BOOK: u32 = ENTRIES << COPY_BITS;
var<workgroup> book: array<f32, BOOK>;   // a copy for each few invocations: hardly two meet in a bank
#end

fn four_of_x(c: u32, q: u32) -> vec4<f32> {
#if X4
    return x_at4(c * X_COL / 4u + q);
#else
    var found = vec4<f32>();
    let k = 4u * q;
    let at = c * X_COL + k * X_K;
    if (k < K) { found.x = x_at(at); }
    if (k + 1u < K) { found.y = x_at(at + X_K); }
    if (k + 2u < K) { found.z = x_at(at + 2u * X_K); }
    if (k + 3u < K) { found.w = x_at(at + 3u * X_K); }
    return found;
#end
}

#include zero_point.wgsl

#if HALVES
// A half of a word that keeps the bits of a code alone is a float16 without an exponent, code * 2^(place - 24). Times 2^24, which x is
// multiplied by, that is a float again that no driver flushes to zero.
const MASK: u32 = ((1u << BITS) - 1u) * 0x10001u;
const LIFT: f32 = 16777216.0;
#end

// Codes of BITS at bit `at` of four words, less their zero point. They become the low bits of a float that is 2^(23 - at) without them.
fn number(words: vec4<u32>, at: u32, zero: f32) -> vec4<f32> {
    let above = bitcast<vec4<f32>>((words & vec4<u32>(((1u << BITS) - 1u) << at)) | vec4<u32>((150u - at) << 23u));
    let base = f32(1u << (23u - at));
    if (WHOLE) { return above - (base + zero); }
    return above - base - zero;
}

#if CODEBOOK
fn looked_up(at: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(book[at.x], book[at.y], book[at.z], book[at.w]);
}
#end

fn group_main(group: u32, lane: u32) {
#if CODEBOOK
    for (var i = lane; i < BOOK; i += WORKGROUP_SIZE) { book[i] = table_at(min(i >> COPY_BITS, TABLE_SIZE - 1u)); }
    let copy = lane & ((1u << COPY_BITS) - 1u);
    workgroupBarrier();
#end
#let field = 23 // BITS
#let beside = 10 // BITS
#for r in PER
#if BLOCK == 0 and not CODEBOOK
    let zero$r = zero_of(min(group * PER + $(r)u, N - 1u), 0u);
#end
#for c in COLS
    var sum$(r)_$c = 0.0;
#end
#end
    var q = lane;
#for round in 3 if HALVES else 2
#let count = VEC if round == 0 else 1
#let halves = HALVES and round < 2
#if round == 2
#for r in PER
#for c in COLS
    sum$(r)_$c *= 1.0 / f32(1u << $(r % (PER // 2) % beside * BITS)u);
#end
#end
    // Zero points were taken off sums: what is not finite by that is added up anew, code by code.
    var all = 0.0;
#for r in PER
#for c in COLS
    all += sum$(r)_$c;
#end
#end
    if ((bitcast<u32>(all) & 0x7f800000u) == 0x7f800000u) {
        q = lane;
#for r in PER
#for c in COLS
        sum$(r)_$c = 0.0;
#end
#end
    }
#end
    for (; q + $(count - 1)u * WORKGROUP_SIZE < WORDS4; q += $(count)u * WORKGROUP_SIZE) {
#for v in count
        let at$v = q + $(v)u * WORKGROUP_SIZE;
        let words$v = w_word4(group * WORDS4 + at$v);
#for c in COLS
#if halves
        let x$(v)_$c = LIFT * four_of_x($(c)u, at$v);
#else
        let x$(v)_$c = four_of_x($(c)u, at$v);
#end
#end
#if BLOCK
#for s in PER // 4
        let scale$(v)_$s = scales_at4((group * BLOCKS + 4u * at$v / BLOCK) * $(PER // 4)u + $(s)u);
#end
#if HAS_ZEROS
        let zeros$v = zeros_at(group * BLOCKS + 4u * at$v / BLOCK);
#end
#end
#end
#for v in count
        {
#let span = beside if halves else field
#for part in ((PER // 2 if halves else PER) + span - 1) // span
            let part$part = words$v >> vec4<u32>($(part * span * BITS)u);
#end
#if halves
#for c in COLS
            let total$c = (x$(v)_$c.x + x$(v)_$c.y) + (x$(v)_$c.z + x$(v)_$c.w);
#end
#for r in PER // 2
#if HAS_ZEROS
            let zeros_of$r = unpack2x16float((zeros$v >> $(r // beside * beside * BITS)u) & (MASK << $(r % beside * BITS)u));
#end
#for i in 4
            let pair$(r)_$i = unpack2x16float(part$(r // beside)[$i] & (MASK << $(r % beside * BITS)u));
#end
#end
#end
#for r in PER
#let pair = r % (PER // 2)
#let half = r // (PER // 2)
#if CODEBOOK
#let shift = r * BITS
#if shift < COPY_BITS
            let codes$r = words$v << vec4<u32>($(COPY_BITS - shift)u);
#else
            let codes$r = words$v >> vec4<u32>($(shift - COPY_BITS)u);
#end
            let weight$r = looked_up((codes$r & vec4<u32>((ENTRIES - 1u) << COPY_BITS)) | vec4<u32>(copy));
#else
#if halves and HAS_ZEROS
            let taken$r = -zeros_of$(pair)[$half];
#else
#if HAS_ZEROS
            let zero$r = f32(extractBits(zeros$v, $(r * BITS)u, BITS));
#else
#if BLOCK
            let zero$r = zero_of(min(group * PER + $(r)u, N - 1u), 4u * at$v / BLOCK);
#end
#end
#if halves
            let taken$r = zero$r * (f32(1u << $(pair % beside * BITS)u) / -LIFT);
#else
            let weight$r = number(part$(r // field), $(r % field * BITS)u, zero$r);
#end
#end
#end
#for c in COLS
#if halves
            var dot$(r)_$c = taken$r * total$c;
#for i in 4
            dot$(r)_$c = fma(pair$(pair)_$i[$half], x$(v)_$c[$i], dot$(r)_$c);
#end
#else
            let dot$(r)_$c = dot(weight$r, x$(v)_$c);
#end
#if BLOCK
            sum$(r)_$c = fma(scale$(v)_$(r // 4)[$(r % 4)], dot$(r)_$c, sum$(r)_$c);
#else
            sum$(r)_$c += dot$(r)_$c;
#end
#end
#end
        }
#end
    }
#end
#if SUBGROUPS
#let fours = (PER * COLS + 3) // 4
    // Of four sums each of four neighbours keeps one and passes on the others; then fours add up.
    let odd = (subgroup_lane & 1u) != 0u;
    let late = (subgroup_lane & 2u) != 0u;
#for j in fours
#for i in 2
#let first = 4 * j + 2 * i
#if first + 1 < PER * COLS
    let two$(j)_$i = select(sum$(first // COLS)_$(first % COLS), sum$((first + 1) // COLS)_$((first + 1) % COLS), odd)
        + subgroupShuffleXor(select(sum$((first + 1) // COLS)_$((first + 1) % COLS), sum$(first // COLS)_$(first % COLS), odd), 1u);
#else
#if first < PER * COLS
    let two$(j)_$i = sum$(first // COLS)_$(first % COLS) + subgroupShuffleXor(sum$(first // COLS)_$(first % COLS), 1u);
#else
    let two$(j)_$i = 0.0;
#end
#end
#end
    var four$j = select(two$(j)_0, two$(j)_1, late) + subgroupShuffleXor(select(two$(j)_1, two$(j)_0, late), 2u);
#end
    for (var far = 4u; far < subgroup_size; far *= 2u) {
#for j in fours
        four$j += subgroupShuffleXor(four$j, far);
#end
    }
    if (subgroup_lane < 4u) {
#for j in fours
        if ($(4 * j)u + subgroup_lane < OUTPUTS) { sums[subgroup_id * OUTPUTS + $(4 * j)u + subgroup_lane] = four$j; }
#end
    }
#else
#for r in PER
#for c in COLS
    sums[lane * OUTPUTS + $(r * COLS + c)u] = sum$(r)_$c;
#end
#end
#end
#if SUBGROUPS
    let parts = subgroups;
#else
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        for (var i = lane; i < half * OUTPUTS; i += WORKGROUP_SIZE) { sums[i] += sums[i + half * OUTPUTS]; }
    }
    let parts = 1u;
#end
    workgroupBarrier();
    for (var i = lane; i < OUTPUTS; i += WORKGROUP_SIZE) {
        let row = group * PER + i / COLS;
        if (row < N) {
            var v = 0.0;
            for (var part = 0u; part < parts; part++) { v += sums[part * OUTPUTS + i]; }
            v *= ALPHA;
#if BLOCK == 0 and not CODEBOOK
            v *= table_at(row * TABLE_ROW);
#end
            let at = i % COLS * Y_COL + row * Y_ROW;
            if (HAS_C) { v += BETA * c_at(c_index(at)); }
            y_set(at, v);
        }
    }
}
