    var s0 = Sample(0, vec4<f32>(1.0), false);
    var s1 = s0;
    var s2 = s0;
    if (ACTIVE0) { s0 = sample(i / STEP0 % OUT0, IN0, OUT0, SCALE0, START0, WIDTH0, CENTER0); }
    if (ACTIVE1) { s1 = sample(i / STEP1 % OUT1, IN1, OUT1, SCALE1, START1, WIDTH1, CENTER1); }
    if (ACTIVE2) { s2 = sample(i / STEP2 % OUT2, IN2, OUT2, SCALE2, START2, WIDTH2, CENTER2); }
