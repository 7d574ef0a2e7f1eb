// Element i of a matrix of which pack_pruned.wgsl kept what is not zero: its inverse. Columns of a row ascend, so they are halved.
// Expects: columns, values, y, and what pack_pruned.wgsl has.
fn column(at: u32) -> u32 {
    return (columns_at(at / 2u) >> (at % 2u * 16u)) & 0xffffu;
}

fn element(i: u32) -> f32 {
    let row = select(i % N, i / K, W_K == 1u);
    let k = select(i / N, i % K, W_K == 1u);
    var low = row * WIDTH;
    for (var reach = 1u << firstLeadingBit(WIDTH); reach > 0u; reach /= 2u) {
        if (low + reach < (row + 1u) * WIDTH && column(low + reach) <= k) { low += reach; }
    }
    return select(0.0, values_at(low), column(low) == k);
}
