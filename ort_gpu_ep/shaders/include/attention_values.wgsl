// The values of a block of attention_units.wgsl, from the `loaded`th CHUNK elements on; zeros behind the last key that a query may see.
#for u in v_loads
        {
            let key = from_key + vn$u;
#if V_EIGHTS
            vw$u = vec4<u32>();
#if (loaded + 1) * CHUNK > DV
            if (key < end && vd$u < $(DV - loaded * CHUNK)u) { vw$u = v_eight((vp$u + key * V_S) / 2u + $(loaded * CHUNK // 8)u); }
#else
            if (key < end) { vw$u = v_eight((vp$u + key * V_S) / 2u + $(loaded * CHUNK // 8)u); }
#end
#else
            va$u = vec4<f32>();
            vb$u = vec4<f32>();
#if (loaded + 1) * CHUNK > DV
            if (key < end && vd$u < $(DV - loaded * CHUNK)u) { va$u = v_at4(vp$u + key * V_S + $(loaded * CHUNK // 4)u); }
            if (key < end && vd$u + 4u < $(DV - loaded * CHUNK)u) { vb$u = v_at4(vp$u + key * V_S + $(loaded * CHUNK // 4 + 1)u); }
#else
            if (key < end) {
                va$u = v_at4(vp$u + key * V_S + $(loaded * CHUNK // 4)u);
                vb$u = v_at4(vp$u + key * V_S + $(loaded * CHUNK // 4 + 1)u);
            }
#end
#end
        }
#end
