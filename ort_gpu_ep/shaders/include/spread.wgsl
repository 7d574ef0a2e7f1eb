#default DEEP = 0
// Where y has column m (in vectors, in elements where it has planes) of a row; NOWHERE where it hasn't.
fn spread(row: u32, m: u32) -> u32 {
#if DEEP
    let plane = row / (OUT_HEIGHT * OUT_WIDTH);
    let pixel = row - plane * (OUT_HEIGHT * OUT_WIDTH);
    let own = m / FILTERS;
    let image = plane / OUT_DEPTH * DEPTH_Y;      // planes of y before it
    let z = plane % OUT_DEPTH * STEP_Z + own / $(STEP_Y * STEP_X)u - CROP_Z;
    let phase = select(own % $(STEP_Y * STEP_X)u, NOWHERE, z >= DEPTH_Y || own >= $(STEP_Z * STEP_Y * STEP_X)u);
#else
    let image = row / (OUT_HEIGHT * OUT_WIDTH);
    let pixel = row - image * (OUT_HEIGHT * OUT_WIDTH);
    let phase = m / FILTERS;
#end
    let which = m % FILTERS;
    let y = pixel / OUT_WIDTH * STEP_Y + phase / STEP_X - CROP_Y;      // before the first: wraps to more than there are
    let x = pixel % OUT_WIDTH * STEP_X + phase % STEP_X - CROP_X;
    if (y >= HEIGHT_Y || x >= WIDTH_Y || phase >= $(STEP_Y * STEP_X)u) { return NOWHERE; }
#if DEEP
#if SPREAD == 1
    return (((image + z) * HEIGHT_Y + y) * WIDTH_Y + x) * FILTERS + which;
#else
    return ((image * FILTERS + which * DEPTH_Y + z) * HEIGHT_Y + y) * WIDTH_Y + x;
#end
#else
#if SPREAD == 1
    return ((image * HEIGHT_Y + y) * WIDTH_Y + x) * FILTERS + which;
#else
    return ((image * FILTERS + which) * HEIGHT_Y + y) * WIDTH_Y + x;
#end
#end
}
