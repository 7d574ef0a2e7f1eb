// Which four channels of which pixel a lane makes, and where the window begins. Expects: what depthwise_last.wgsl does.
    let i = group.x * WORKGROUP_SIZE + lane;
    if (i >= ROWS * C4) { return; }
    let channel = i % C4;
    let row = i / C4;
    let image = row / (OUT_HEIGHT * OUT_WIDTH);
    let pixel = row - image * (OUT_HEIGHT * OUT_WIDTH);
    let oy = pixel / OUT_WIDTH;
    let top = i32(oy * STRIDE_Y) - i32(PAD_Y);
    let left = i32((pixel - oy * OUT_WIDTH) * STRIDE_X) - i32(PAD_X);
