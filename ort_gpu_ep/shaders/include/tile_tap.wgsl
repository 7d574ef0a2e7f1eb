// Where in a window, and from which channel on, four of a step's k lie. Expects: step, kq; C4 (fours of a tap) KQ TQ TAPS, the window.
#if TAPS
    let tap = step / $(C4 // TQ)u;
    let channel = step % $(C4 // TQ)u * TQ + kq;
    let within = true;
#else
    let k = step * TQ + kq;
    let tap = k / C4;
    let channel = k % C4;
    let within = k < KQ;
#end
    let dy = i32(tap / WINDOW_X * DILATION_Y);
    let dx = i32(tap % WINDOW_X * DILATION_X);
