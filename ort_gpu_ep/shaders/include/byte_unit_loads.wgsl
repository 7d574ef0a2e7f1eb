// The loads of byte_units.wgsl for the step `next`.
#for i in w_loads
        w$i = w_word4(wp$i + next * TQ);
#end
#for i in x_loads
#if POINTWISE
        x$i = quad(xp$i, min(next * TQ + kq, KQ - 1u));
#else
        x$i = windowed(next, kq, top$i, left$i, base$i, last.y);
#end
#end
