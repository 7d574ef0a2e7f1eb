// The sum of the values of all lanes up to this one. Every lane of the workgroup calls it. Expects: WORKGROUP_SIZE.
// Source: Hillis and Steele, Data Parallel Algorithms (1986).
var<workgroup> sums: array<u32, WORKGROUP_SIZE>;

fn scanned(own: u32, lane: u32) -> u32 {
    var sum = own;
    for (var step = 1u; step < WORKGROUP_SIZE; step *= 2u) {
        sums[lane] = sum;
        workgroupBarrier();
        if (lane >= step) { sum += sums[lane - step]; }
        workgroupBarrier();
    }
    return sum;
}
