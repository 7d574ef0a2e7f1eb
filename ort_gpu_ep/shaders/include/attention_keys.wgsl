// The keys of a block of attention_units.wgsl from `next` on; of those behind the last one, which no query sees, that one.
#for u in k_loads
#if D != padded
#if K_EIGHTS
        if (kd$u < D) { kw$u = k_eight((kp$u + min(next + kn$u, SK - 1u) * K_S) / 2u); }
#else
        if (kd$u < D) { ka$u = k_at4(kp$u + min(next + kn$u, SK - 1u) * K_S); }
        if (kd$u + 4u < D) { kb$u = k_at4(kp$u + min(next + kn$u, SK - 1u) * K_S + 1u); }
#end
#else
#if K_EIGHTS
        kw$u = k_eight((kp$u + min(next + kn$u, SK - 1u) * K_S) / 2u);
#else
        ka$u = k_at4(kp$u + min(next + kn$u, SK - 1u) * K_S);
        kb$u = k_at4(kp$u + min(next + kn$u, SK - 1u) * K_S + 1u);
#end
#end
#end
