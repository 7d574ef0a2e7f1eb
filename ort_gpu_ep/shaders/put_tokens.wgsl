// Writes the tokens of this step into a cache y of [BATCH, HEADS, ROWS, HEAD], behind those of the steps before; all else stays as it is.
// A batch whose length is out of range writes nothing. One invocation per element of the tokens, COUNT in all.
// Expects: x, lengths, cosines? sines? positions? weight? and the constants that append_tokens.wgsl describes; y, COUNT.
// Source: GroupQueryAttention of ONNX Runtime (com.microsoft), past and present in one buffer.
#include tokens_before.wgsl
#include token_element.wgsl

fn group_main(group: u32, lane: u32) {
    let i = group * WORKGROUP_SIZE + lane;
    if (i >= COUNT) { return; }
    let d = i % HEAD;
    let head = i / HEAD % HEADS;
    let token = i / (HEAD * HEADS) % SEQUENCE;
    let b = i / (HEAD * HEADS * SEQUENCE);
    let before = tokens_before(b);
    if (!lengths_fit(b)) { return; }
    y_set(((b * HEADS + head) * ROWS + before + token) * HEAD + d, token_element(b, token, head, d, before));
}
