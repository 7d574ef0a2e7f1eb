// sums[((share * GATES + gate) * UNITS + u) * ROWS + r] = row u of the team's rows of R, whose number is row0, ..., times row r of the
// state, which lies at from0_r; in the first step, at from1_r of what that reads, or zero without h0. Expects: lane, team, l (a lane of a
// team), works (whether the team has any sums), is_first.
#for u in UNITS
#for r in ROWS
        var sum$(u)_$r = 0.0;
#end
#end
#for first in 2
#if first == 0 or HAS_H0
        if (works && is_first == ($(first)u == 1u)) {
            for (var i = 0u; i < (H + 127u) / 128u; i++) {
                let k = 4u * (i * 32u + l);
                if (H % 128u == 0u || k < H) {
#for r in ROWS
                    let h$r = four$(first)(from$(first)_$r, k);
#end
#for u in UNITS
                    let w$u = r_four(row$u, k);
#for r in ROWS
                    sum$(u)_$r += dot(w$u, h$r);
#end
#end
                }
            }
        }
#end
#end
#for u in UNITS
#for r in ROWS
#if SUBGROUPS
        let total$(u)_$r = subgroupAdd(sum$(u)_$r);
        if (l == 0u) { sums[(team * UNITS + $(u)u) * ROWS + $(r)u] = total$(u)_$r; }
#else
        parts[$(u * ROWS + r)u * WORKGROUP_SIZE + lane] = sum$(u)_$r;
#end
#end
#end
        workgroupBarrier();
#if not SUBGROUPS
        if (lane < SHARE * GATES * UNITS * ROWS) {
            let first = lane % (UNITS * ROWS) * WORKGROUP_SIZE + lane / (UNITS * ROWS) * 32u;
            var total = vec4<f32>();
            for (var i = 0u; i < 8u; i++) {
#for e in 4
                total[$e] += parts[first + (4u * i + $(e)u + lane) % 32u];
#end
            }
            sums[lane] = (total.x + total.y) + (total.z + total.w);
        }
        workgroupBarrier();
#end
