// The loads of unit_vectors.wgsl for the step of k that begins at `next`.
#for i in x_loads
    x$(t)_$i = vec4<u32>();
    if (next + xk$i < k_end) { x$(t)_$i = x_eight(xp$i + next / 8u); }
#end
#for i in w_loads
    v$(t)_$i = w_word4(row$i * WORDS4 + min((next + wk$i) / 4u, WORDS4 - 2u));
    w$(t)_$i = w_word4(row$i * WORDS4 + min((next + wk$i) / 4u, WORDS4 - 2u) + 1u);
    s$(t)_$i = scales_eight(row$i * BLOCKS + min((next + wk$i) / BLOCK, BLOCKS - 1u));
#if HAS_ZEROS
    z$(t)_$i = zeros_at(row$i * BLOCKS + min((next + wk$i) / BLOCK, BLOCKS - 1u));
#end
#end
