// What packed_sums.wgsl leaves, of codes as the model stores them and vectors that are rounded to bytes here: of each 32 elements the largest
// becomes 127. An invocation has 32 elements at a time, for all rows of its workgroup.
// Expects: group, lane, n (rows), and what rounded_matvecs.wgsl says.
#let SUMS = PER * WIDE + NORM
#for r in SUMS
#for c in COLS
    var sum$(r)_$c = 0.0;
#end
#end
    for (var piece = lane; piece < PIECES; piece += WORKGROUP_SIZE) {
        let block = piece / STEPS_OF;
#for m in WIDE
#for r in PER
        let row$(m)_$r = min(group * PER + $(r)u, $(n)u - 1u);
#for i in BITS // 4
        let w$(m)_$(r)_$i = codes_of_$(MATRIX + m)((row$(m)_$r * PIECES + piece) * $(BITS // 4)u + $(i)u);
#end
        let scale$(m)_$r = scale_of_$(MATRIX + m)(row$(m)_$r * TABLE_ROW + block * TABLE_BLOCK);
#if HAS_ZEROS
        let zero$(m)_$r = zero_of_$(MATRIX + m)(row$(m)_$r, block);
#end
#end
#end
#for c in COLS
        var most$c = vec4<u32>();       // a float's bits without its sign are in its order, and NaN's are above infinity's
#for i in 8
        var x$(i)_$c = x_at4($(c)u * (K / 4u) + 8u * piece + $(i)u);
#if NORM
        sum$(SUMS - 1)_$c += dot(x$(i)_$c, x$(i)_$c);
        x$(i)_$c *= gamma_at4(8u * piece + $(i)u);
#end
        most$c = max(most$c, bitcast<vec4<u32>>(abs(x$(i)_$c)));
#end
        let largest$c = bitcast<f32>(max(max(most$(c).x, most$(c).y), max(most$(c).z, most$(c).w)));
        let up$c = select(127.0 / largest$c, 0.0, largest$c < 1e-35);
#for i in 8
        // 1.5 * 2^23 and a number that is small beside it: its low bits are the nearest whole number, halves to even
        let whole$(i)_$c = bitcast<vec4<u32>>(fma(x$(i)_$c, vec4<f32>(up$c), vec4<f32>(12582912.0)));
#end
#for i in 4
#let low = 2 * i
#let high = 2 * i + 1
#if BITS == 4
        let q$(low)_$c = bytes(vec4<u32>(whole$(low)_$(c).xz, whole$(high)_$(c).xz));
        let q$(high)_$c = bytes(vec4<u32>(whole$(low)_$(c).yw, whole$(high)_$(c).yw));
#else
        let q$(low)_$c = bytes(whole$(low)_$c);
        let q$(high)_$c = bytes(whole$(high)_$c);
#end
#end
        var total$c = 0;
#for i in 8
        total$c += dot4I8Packed(q$(i)_$c, 0x01010101u);
#end
        let step$c = largest$c * (1.0 / 127.0);
#end
#for m in WIDE
#for r in PER
#for c in COLS
        {
            var found = 0;
#for i in BITS // 4
#for j in 4
#if BITS == 4
            found += dot4I8Packed(w$(m)_$(r)_$(i)[$j] & 0x0f0f0f0fu, q$(2 * j)_$c);
            found += dot4I8Packed((w$(m)_$(r)_$(i)[$j] >> 4u) & 0x0f0f0f0fu, q$(2 * j + 1)_$c);
#else
            found += dot4I8Packed(w$(m)_$(r)_$(i)[$j] ^ 0x80808080u, q$(4 * i + j)_$c);
#end
#end
#end
#if HAS_ZEROS
            let less = f32(found) - (zero$(m)_$r - FLIP) * f32(total$c);
#else
            let less = f32(found - i32(TAKEN) * total$c);
#end
            sum$(m * PER + r)_$c = fma(less * step$c, scale$(m)_$r, sum$(m * PER + r)_$c);
        }
#end
#end
#end
    }
#include joined_sums.wgsl
