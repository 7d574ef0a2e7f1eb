// Which four channels of which place a lane makes, and where the window begins. Expects: what pool_last.wgsl does.
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= TOTAL) { return; }
    let place = i / INNER;
    let channel = i - place * INNER;
    let row = place / OUT2;
    let image = row / OUT1;
    let top = i32((row - image * OUT1) * S1) - i32(H1);
    let left = i32((place - row * OUT2) * S2) - i32(H2);
