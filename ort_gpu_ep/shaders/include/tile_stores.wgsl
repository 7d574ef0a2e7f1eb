// Stores what becomes of the sums of vectors m of rows o, several at a time: what the fused steps read is under way for all of them, where
// a store in between would keep the next load waiting.
// Expects: sums r, vectors m and rows o of each of OUTPUTS; m_base, batch; ROWS M4 GROUP_COUNT SPREAD LOADED (outputs at a time);
// finished(i, m, r), what vector i of y, column m, becomes, and keep(i, v), which stores it.
#let together = LOADED if LOADED < OUTPUTS else OUTPUTS
#for round in OUTPUTS // together
#for f in together
#let e = round * together + f
    let c$e = m_base + min(m$e, M4 - 1u);
#if SPREAD
    let s$e = spread(min(o$e, ROWS - 1u), c$e);
    let i$e = select(s$e, 0u, s$e == NOWHERE);
#else
    let i$e = (batch * ROWS + min(o$e, ROWS - 1u)) * $(GROUP_COUNT * M4)u + c$e;
#end
    let y$e = finished(i$e, c$e, r$e);
#end
#for f in together
#let e = round * together + f
#if SPREAD
    if (m$e < M4 && o$e < ROWS && s$e != NOWHERE) { keep(i$e, y$e); }
#else
    if (m$e < M4 && o$e < ROWS) { keep(i$e, y$e); }
#end
#end
#end
