// What a lane of matrix_product.wgsl has of w, from codes in c<q>, scales in cs<g> and zero points in cz<g> into the tile: eight to a vector.
#for g in code_scales
#for s in 16 // CODES
        let cz$(g)_$s = fma(cz$g, bitcast<f32>($((127 + s * CODES) * 8388608)u), 8388608.0);
        let cs$(g)_$s = cs$g * bitcast<f32>($((127 - s * CODES) * 8388608)u);
#end
#end
#for q in code_words
#if w_loads * CODES % 4
        let own$q = (c$q ^ FLIP) >> (ck * $(CODES)u % 32u);
#else
        let own$q = c$q ^ FLIP;
#end
        let upper$q = own$q >> 16u;
#end
#for i in w_loads
#let g = i if code_scales > 1 else 0
#for p in 4
#let at = (8 * i + 2 * p) * CODES
#let s = at % 16 // CODES
#let q = at // 32
#if at % 32 < 16
        let half$(i)_$p = own$q;
#else
        let half$(i)_$p = upper$q;
#end
        let pair$(i)_$p = pack2x16float(vec2<f32>(
            weight(half$(i)_$p & (((1u << $(CODES)u) - 1u) << $(s * CODES)u), cz$(g)_$s, cs$(g)_$s),
            weight(half$(i)_$p & (((1u << $(CODES)u) - 1u) << $((s + 1) * CODES)u), cz$(g)_$(s + 1), cs$(g)_$(s + 1))));
#end
        tile[$(x_size)u + wt$i] = vec4<u32>(pair$(i)_0, pair$(i)_1, pair$(i)_2, pair$(i)_3);
#end
