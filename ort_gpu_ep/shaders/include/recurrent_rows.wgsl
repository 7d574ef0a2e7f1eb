// What a lane multiplies of the team's rows of R (row0, ...), into registers while they are few: a step need not be known for that, and more rows
// of the batch come to them. Expects: l (a lane of a team).
#let COUNT = (H + 127) // 128
#if COUNT * UNITS <= 16
#for i in COUNT
#for u in UNITS
#if H % 128 == 0
    let w$(i * UNITS + u) = r_four(row$u, $(128 * i)u + 4u * l);
#else
    let w$(i * UNITS + u) = r_four(row$u, min($(128 * i)u + 4u * l, H - 1u) / 4u * 4u);
#end
#end
#end
#end
