// What a lane brings into workgroup memory for the step at k0: elements of w as they are stored, with their scales and zeros, and of x.
// Expects: the variables that expert_tiles.wgsl declares.
#for j in w_loads
    {
        let t = lane + $(j)u * WORKGROUP_SIZE;
        let k = k0 + t / RQ * 4u;
#for i in 4
        let row$i = first_row + t % RQ + $(i)u * RQ;
        let n$i = min(row$i, N - 1u);
        if (row$i < N && k < K) {
            w$(j)_$i = raw_weights(e, n$i, k);
#if BITS and PER == 4
            scale$(j)_$i = scale_of(e, n$i, k);
            zero$(j)_$i = zero_of(e, n$i, k);
#end
        } else {
            w$(j)_$i = raw_t();
#if BITS and PER == 4
            scale$(j)_$i = 0.0;
#end
        }
#end
    }
#end
#for j in x_loads
    {
        let t = lane + $(j)u * WORKGROUP_SIZE;
#if TJ * STEP // 16 % lanes
        if (t < CQ * STEP / 4u)
#end
        {
#for i in 4
            x$(j)_$i = x4(begin + t / $(STEP // 4)u + $(i)u * CQ, end, k0 + t % $(STEP // 4)u * 4u);
#end
        }
    }
#end
