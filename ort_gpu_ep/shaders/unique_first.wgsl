// first[k] = the least slice along an axis that is equal to slice k; NaN is equal to NaN. One invocation per slice.
// Expects: x, OUTER, N (slices), INNER, FLOAT.
#include unequal.wgsl
fn element(k: u32) -> first_t {
    for (var other = 0u; other < k; other++) {
        if (compared(other, k) == 0) { return other; }
    }
    return k;
}
