// The sums of products of PER rows of WIDE matrices from number MATRIX on, whose codes lie alike, with COLS vectors, in workgroup memory: `sums`, OUTPUTS for
// each of `parts`; row by row, of each the vectors. With NORM x is multiplied by gamma, and what comes last are the sums of its squares before.
// Expects: group, lane, and what packed_matvec.wgsl says; words_of_0, and of other matrices than the first words_of_1 scales1 zeros1 and so on.
#let SUMS = PER * WIDE + NORM
#let field = 23 // BITS
#let beside = 10 // BITS
#let steps = 2 if 3 <= COLS <= 4 and BLOCK and BLOCK % 32 == 0 and WORDS % 32 == 0 and not CODEBOOK else 1
#let mid = (PER + 1) // 2
#let pairs = mid if steps == 1 else 1
#for r in SUMS
#if BLOCK == 0 and not CODEBOOK
    let zero$r = zero_of(min(group * PER + $(r)u, N - 1u), 0u);
#end
#for c in COLS
    var sum$(r)_$c = 0.0;
#end
#end
#if steps == 2
    // An iteration takes eight k of a block in two steps: scales and zero points meet the sums of both, once for each x. Four neighbours share 32 k. The first
    // four of eight begin with the lower half of theirs, the others with the upper half: the 128 bytes of x that eight read at a time lie in different banks.
    let begin = 2u * lane - (lane & 3u) + (lane & 4u);
    var q = begin;
#else
    var q = lane;
#end
#for round in 2 if HALVES else 1
#let halves = HALVES and round == 0
#let ahead = round == 0 and COLS * WIDE <= 2
#if round
#for r in PER * WIDE
#for c in COLS
    sum$(r)_$c *= 1.0 / f32(1u << $(r % (PER // 2) % beside * BITS)u);
#end
#end
    // Zero points were taken off sums: what is not finite by that is added up anew, code by code.
    var all = 0.0;
#for r in SUMS
#for c in COLS
    all += sum$(r)_$c;
#end
#end
    if ((bitcast<u32>(all) & 0x7f800000u) == 0x7f800000u) {
#if steps == 2
        q = begin;
#else
        q = lane;
#end
#for r in SUMS
#for c in COLS
        sum$(r)_$c = 0.0;
#end
#end
    }
#end
#if ahead
    // The next words are under way while these are multiplied; a load under a condition would be waited for, so the last ones come twice. With more sums there are no registers for them.
#for m in WIDE
    var next$m = words_of_$(MATRIX + m)(group * WORDS4 + min(q, WORDS4 - 1u));
#end
#end
    for (; q < WORDS4; q += $(steps)u * WORKGROUP_SIZE) {
#for s in steps
#for m in WIDE
#if not ahead
        let words$(s * WIDE + m) = words_of_$(MATRIX + m)(group * WORDS4 + q);
#else
        let words$m = next$m;
        next$m = words_of_$(MATRIX + m)(group * WORDS4 + min(q + WORKGROUP_SIZE, WORDS4 - 1u));
#end
#end
#if steps == 2
        q ^= 4u;
#end
#end
#for s in steps
#if NORM
#if halves and steps == 2
        let gamma$s = LIFT * gamma_at4(q);
#else
        let gamma$s = gamma_at4(q);
#end
#end
#for c in COLS
#let x = s * COLS + c
#if NORM
        let plain$x = four_of_x($(c)u, q);
        sum$(SUMS - 1)_$c += dot(plain$x, plain$x);
#if halves and steps == 1
        let x$x = LIFT * (gamma$s * plain$x);
#else
        let x$x = gamma$s * plain$x;
#end
#else
#if halves
        let x$x = LIFT * four_of_x($(c)u, q);
#else
        let x$x = four_of_x($(c)u, q);
#end
#end
#end
#if steps == 2
        q ^= 4u;
#end
#end
#if BLOCK
#for m in WIDE
#for s in PER // 4
#if MATRIX + m == 0
        let scale$(m)_$s = scales_at4((group * BLOCKS + 4u * q / BLOCK) * $(PER // 4)u + $(s)u);
#else
        let scale$(m)_$s = scales$(MATRIX + m)_at4((group * BLOCKS + 4u * q / BLOCK) * $(PER // 4)u + $(s)u);
#end
#end
#if HAS_ZEROS
#if MATRIX + m == 0
        let zeros$m = zeros_at(group * BLOCKS + 4u * q / BLOCK);
#else
        let zeros$m = zeros$(MATRIX + m)_at(group * BLOCKS + 4u * q / BLOCK);
#end
#end
#end
#end
#for m in WIDE
#let first = m * PER
        {
#let span = beside if halves else field
#let parts = ((PER // 2 if halves else PER) + span - 1) // span
#for s in steps
#for part in parts
            let part$(s * parts + part) = words$(s * WIDE + m) >> vec4<u32>($(part * span * BITS)u);
#end
#end
#if halves
#for c in COLS
#if steps == 2
            let both$c = x$c + x$(COLS + c);
            let total$c = (both$c.x + both$c.y) + (both$c.z + both$c.w);
#else
            let total$c = (x$c.x + x$c.y) + (x$c.z + x$c.w);
#end
#end
#end
#for turn in mid // pairs
#if halves
#for next in pairs
#let r = turn * pairs + next
#if HAS_ZEROS
            let zeros_of$r = unpack2x16float((zeros$m >> $(r // beside * beside * BITS)u) & (MASK << $(r % beside * BITS)u));
#end
#for s in steps
#for i in 4
            let pair$(r)_$(4 * s + i) = unpack2x16float(part$(s * parts + r // beside)[$i] & (MASK << $(r % beside * BITS)u));
#end
#end
#end
#end
#for next in 2 * pairs
#let r = next // pairs * mid + turn * pairs + next % pairs
#if r < PER
#let pair = r % (PER // 2)
#let half = r // (PER // 2)
#if CODEBOOK
#let shift = r * BITS
#if shift < COPY_BITS
            let codes$r = words$m << vec4<u32>($(COPY_BITS - shift)u);
#else
            let codes$r = words$m >> vec4<u32>($(shift - COPY_BITS)u);
#end
            let weight$r = looked_up((codes$r & vec4<u32>((ENTRIES - 1u) << COPY_BITS)) | vec4<u32>(copy));
#else
#if halves and HAS_ZEROS
            let taken$r = -zeros_of$(pair)[$half];
#else
#if HAS_ZEROS
            let zero$r = f32(extractBits(zeros$m, $(r * BITS)u, BITS));
#else
#if BLOCK
            let zero$r = zero_of(min(group * PER + $(r)u, N - 1u), 4u * q / BLOCK);
#end
#end
#if halves
            let taken$r = zero$r * (f32(1u << $(pair % beside * BITS)u) / -LIFT);
#else
#for s in steps
            let weight$(s * PER + r) = number(part$(s * parts + r // field), $(r % field * BITS)u, zero$r);
#end
#end
#end
#end
#for c in COLS
#if halves
            var dot$(r)_$c = taken$r * total$c;
#for s in steps
#for i in 4
            dot$(r)_$c = fma(pair$(pair)_$(4 * s + i)[$half], x$(s * COLS + c)[$i], dot$(r)_$c);
#end
#end
#else
#if steps == 2
            let dot$(r)_$c = dot(weight$r, x$c) + dot(weight$(PER + r), x$(COLS + c));
#else
            let dot$(r)_$c = dot(weight$r, x$c);
#end
#end
#if BLOCK
            sum$(first + r)_$c = fma(scale$(m)_$(r // 4)[$(r % 4)], dot$(r)_$c, sum$(first + r)_$c);
#else
            sum$(first + r)_$c += dot$(r)_$c;
#end
#end
#end
#end
#end
        }
#end
    }
#end
#include lane_sums.wgsl
