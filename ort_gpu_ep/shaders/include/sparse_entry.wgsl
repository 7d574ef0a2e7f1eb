// Adds entry i of the four of row m of sparse_product.wgsl to its sums.
#if WINDOWED
                    let channel = k$m[$i] / TAPS;
                    let tap = k$m[$i] - channel * TAPS;
                    let place = channel * PLANE + place_of(tap);
                    let bit = 1u << tap;
#else
                    let place = k$m[$i] * PLANE;
#end
#for j in EACH
#if WINDOWED
                    var x$j = 0.0;
                    if ((seen$j & bit) != 0u) { x$j = x_at(base$j + place); }
#else
#if X_FOURS
                    let x$j = x_at4(base$j + place);
#else
                    let x$j = x_at(base$j + place);
#end
#end
#end
#for j in EACH
                    s$(m)_$j = fma(sum_t(w$m[$i]), x$j, s$(m)_$j);
#end
