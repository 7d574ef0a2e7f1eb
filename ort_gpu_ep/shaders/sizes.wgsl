// What follows from the counts of a run: y[place] = the result of a program, for each of the programs in `code`. code[0] is their number,
// code[1 + p] where program p begins; an instruction is two words, of which the second is a number, or which count, or the place.
// One invocation a program. Expects: code, count0 to count<COUNTS - 1>. Bound raw.
fn floor_div(a: i32, b: i32) -> i32 {
    let q = a / select(b, 1, b == 0);
    return select(q, q - 1, a % select(b, 1, b == 0) != 0 && (a < 0) != (b < 0));
}

fn group_main(group: u32, lane: u32) {
    let program = group * WORKGROUP_SIZE + lane;
    if (program >= code_at(0u)) { return; }
    var stack: array<i32, STACK>;
    var at = code_at(1u + program);
    var top = 0u;
    for (var n = 0u; n < STEPS; n++) {
        let word = code_at(at + 1u);
        let right = stack[min(top, STACK) - min(top, 1u)];
        let left = stack[min(top, STACK) - min(top, 2u)];
        var value = bitcast<i32>(word);
        switch (code_at(at)) {
            case 0u: { top += 1u; }
            case 1u: {
#for k in COUNTS
                if (word == $(k)u) { value = bitcast<i32>(count$(k)_at(0u)); }
#end
                top += 1u;
            }
            case 2u: { top -= 1u; value = left + right; }
            case 3u: { top -= 1u; value = left * right; }
            case 4u: { top -= 1u; value = floor_div(left, right); }
            case 5u: { top -= 1u; value = left - floor_div(left, right) * right; }
            case 6u: { top -= 1u; value = max(left, right); }
            case 7u: { if (right != 0) { wrong_count(); } return; }
            default: {
#if Y_BITS == 64
                y_set(word, y_t(bitcast<u32>(right), select(0u, 0xffffffffu, right < 0)));
#else
                y_set(word, bitcast<u32>(right));
#end
                return;
            }
        }
        stack[min(top, STACK) - min(top, 1u)] = value;
        at += 2u;
    }
}
