    let d = i % HEAD;
    let row = i / HEAD % ROWS;
    let head = i / (HEAD * ROWS) % HEADS;
    let b = i / (HEAD * ROWS * HEADS);
    let before = tokens_before(b);
#if QUERY
    let token = row;
#else
    if (row >= before + SEQUENCE) { return $(-8 if CODES == 4 else 0).0; }        // as ONNX Runtime's CPU leaves rows that no token has reached
    if (row < before) {
#if HAS_PAST
#if CODES
        if (row < PAST) { return past_code(((b * HEADS + head) * PAST + row) * HEAD + d); }
#else
        if (row < PAST) { return past_at(((b * HEADS + head) * PAST + row) * HEAD + d); }
#end
#end
        return $(-8 if CODES == 4 else 0).0;
    }
    let token = row - before;
#end
#if CODES
    return code_of(token_element(PART, b, token, head, d, before), scale_of(PART, head, d));
#else
    return token_element(PART, b, token, head, d, before);
#end
