// Stores four elements of a row that are normal already: times scale, plus bias, of the row's length or (CHANNELS > 0) of its channels.
// Expects: scale?, bias?, y; N4 (vectors of a row), CHANNELS, PER_ROW (channels of a row), PLANE4 (vectors of one).
fn store(row: u32, k: u32, normal: vec4<f32>) {
    var v = normal;
#if CHANNELS
    let channel = row % $(CHANNELS // PER_ROW)u * PER_ROW + k / PLANE4;
#if HAS_SCALE
    v *= scale_at(channel);
#end
#if HAS_BIAS
    v += bias_at(channel);
#end
#else
#if HAS_SCALE
    v *= scale_at4(k);
#end
#if HAS_BIAS
    v += bias_at4(k);
#end
#end
    y_set4(row * N4 + k, v);
}
