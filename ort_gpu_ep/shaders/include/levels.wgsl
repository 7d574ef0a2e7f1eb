// The number that a code of four bits stands for, before its scale. Expects: LEVEL_0 ... LEVEL_15.
fn level(code: u32) -> f32 {
    switch code {
#for i in 15
        case $(i)u: { return LEVEL_$i; }
#end
        default: { return LEVEL_15; }
    }
}
