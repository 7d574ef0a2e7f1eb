// order[line, r] = the first KEEP indices of run r of the line, sorted by (key, index); a workgroup per run of RUN elements.
// Expects: keys ([line, N], low and high words), order, N, RUN (a power of two), RUNS (of a line), KEEP.
// Source: Batcher's bitonic sort. Beyond the end of a line stand the largest key and index, so they go last.
const NOTHING: u32 = 0xffffffffu;
var<workgroup> key_low: array<u32, RUN>;
var<workgroup> key_high: array<u32, RUN>;
var<workgroup> index: array<u32, RUN>;

fn before(a: u32, b: u32) -> bool {
    if (key_high[a] != key_high[b]) { return key_high[a] < key_high[b]; }
    if (key_low[a] != key_low[b]) { return key_low[a] < key_low[b]; }
    return index[a] < index[b];
}

fn swap(a: u32, b: u32) {
    let saved = vec3<u32>(key_low[a], key_high[a], index[a]);
    key_low[a] = key_low[b];
    key_high[a] = key_high[b];
    index[a] = index[b];
    key_low[b] = saved.x;
    key_high[b] = saved.y;
    index[b] = saved.z;
}

fn group_main(group: u32, lane: u32) {
    let start = (group % RUNS) * RUN;
    for (var t = lane; t < RUN; t += WORKGROUP_SIZE) {
        var key = vec2<u32>(NOTHING);
        let inside = start + t < N;
        if (inside) { key = keys_at(group / RUNS * N + start + t); }
        key_low[t] = key.x;
        key_high[t] = key.y;
        index[t] = select(NOTHING, start + t, inside);
    }
    workgroupBarrier();
    for (var size = 2u; size <= RUN; size *= 2u) {
        for (var stride = size / 2u; stride > 0u; stride /= 2u) {
            for (var t = lane; t < RUN / 2u; t += WORKGROUP_SIZE) {
                let a = t / stride * stride * 2u + t % stride;
                let b = a + stride;
                if (before(b, a) == ((a & size) == 0u)) { swap(a, b); }
            }
            workgroupBarrier();
        }
    }
    for (var t = lane; t < KEEP; t += WORKGROUP_SIZE) { order_set(group * KEEP + t, index[t]); }
}
