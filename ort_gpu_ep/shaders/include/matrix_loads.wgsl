// The loads of matrix_product.wgsl for the step of k that begins at `next`.
#if IM2COL and not POINTWISE
#if not PLANES and C % TK == 0
    var tap_0 = tap_of(next);      // a step lies within one tap
    tap_0.z += i32(xk0 * 8u);
#if x_parts == 2
    var tap_1 = tap_0;
    tap_1.z += 4;
#end
#else
#for h in x_parts
    let tap_$h = tap_of(next + xk0 * 8u + $(4 * h)u);
#end
#end
#end
#for i in x_loads
#if IM2COL and not POINTWISE and not PLANES and C % 8 == 0 and x_parts == 2
    x$(i)_0 = x_loaded();
    x$(i)_1 = x_loaded();
    if (inside(first$i, tap_0)) {
        x$(i)_0 = x_four(u32(xb$i + tap_0.z) / 4u);
        x$(i)_1 = x_four(u32(xb$i + tap_0.z) / 4u + 1u);
    }
#else
#for h in x_parts
#if IM2COL and not POINTWISE
    x$(i)_$h = load_x(xb$i, first$i, tap_$h);
#else
#if X_FOURS
    x$(i)_$h = load_x(xp$i + next / $(8 // x_parts)u + $(h)u, next + xk$i * 8u + $(4 * h)u);
#else
    x$(i)_$h = load_x(xb$i, next + xk$i * 8u + $(4 * h)u);
#end
#end
#end
#end
#end
#if CODES
    let code = next * $(CODES)u / 32u + ck * $(CODES)u / 32u;
#if CODE_FOURS
#for q in code_words // 4
    let cw$q = w_word4((cm * WORDS + min(code + $(4 * q)u, WORDS - 4u)) / 4u);
#for j in 4
    c$(4 * q + j) = cw$q[$j];
#end
#end
#else
#for q in code_words
    c$q = w_word(cm * WORDS + min(code + $(q)u, WORDS - 1u));
#end
#end
#for g in code_scales
#if BLOCK
    let block$g = min(next + ck + $(8 * g)u, K - 1u) / BLOCK;
#else
    let block$g = 0u;
#end
    cs$g = table_at(block$g * M + cm);
    cz$g = zero_of(cm, block$g);
#end
#else
#for i in w_loads
#for h in w_parts
#if W_FOURS
#if W_ROWS
    w$(i)_$h = load_w(wp$i + next * W_K / $(8 // w_parts)u + $(h)u, wm$i + $(4 * h)u, next + wk$i);
#else
    w$(i)_$h = load_w(wp$i + next / $(8 // w_parts)u + $(h)u, wm$i, next + wk$i + $(4 * h)u);
#end
#else
#if W_ROWS
    w$(i)_$h = load_w(w_start, wm$i + $(4 * h)u, next + wk$i);
#else
    w$(i)_$h = load_w(w_start, wm$i, next + wk$i + $(4 * h)u);
#end
#end
#end
#end
#end
