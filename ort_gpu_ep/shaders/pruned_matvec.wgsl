// y[c, n] = ALPHA * sum over what is not zero in row n of value * x[c, column] + BETA * bias, for COLS vectors c. TEAM invocations sum a
// row, each four places at a time, so that neighbours read neighbouring words.
// Expects: columns, values (pack_pruned.wgsl; as vectors of four), x, c?, y; N K WIDTH COLS TEAM X_COL X_K Y_COL Y_ROW ALPHA BETA, c_index.
const ROWS: u32 = WORKGROUP_SIZE / TEAM;
const FOURS: u32 = WIDTH / 4u;
var<workgroup> sums: array<f32, WORKGROUP_SIZE * COLS>;

fn group_main(group: u32, lane: u32) {
    let member = lane % TEAM;
    let row = group * ROWS + lane / TEAM;
    let start = min(row, N - 1u) * FOURS;
#for c in COLS
    var sum$c = 0.0;
#end
    for (var q = start + member; q < start + FOURS; q += TEAM) {
        let value = values_at4(q);
        let low = columns_at(2u * q);
        let high = columns_at(2u * q + 1u);
        let k = vec4<u32>(low & 0xffffu, low >> 16u, high & 0xffffu, high >> 16u);
#for j in 4
        if (k[$j] < K) {     // a place without a value has no column
#for c in COLS
            sum$c = fma(value[$j], x_at($(c)u * X_COL + k[$j] * X_K), sum$c);
#end
        }
#end
    }
#include team_sums.wgsl
}
