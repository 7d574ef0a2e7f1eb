// Which sums of a tile a lane has: its team, its place t in that, columns from ty and rows from tx on. Expects: lane; TEAM TX TY.
    let team = lane / TEAM;
    let t = lane % TEAM;
#if TX % 4 == 0 and TY % 8 == 0
    let tx = ((t >> 1u) & 3u) + 4u * ((t >> 5u) % $(TX // 4)u);
    let ty = (t & 1u) + 2u * ((t >> 3u) & 3u) + 8u * ((t >> 5u) / $(TX // 4)u);
#else
    let tx = t % TX;
    let ty = t / TX;
#end
