"""Model-local functions of a step: recurrences over a whole sequence, updates with several results, specified by
standard operators.

ONNX Runtime inlines a function that no provider claims, so any provider runs them; `ort_gpu_ep/ops/training.py` claims
them as a whole. T: steps, B: batch, H: hidden size. What is called backward goes from the last step to the first; gates
lie side by side along the last axis.
"""

from __future__ import annotations

from functools import cache

import onnx
import onnx.parser

from ort_gpu_ep.training.writer import DOMAIN

_LSTM_CELLS = """
LSTMCells (forget, added, c0) => (C)
{
    cT, C = Scan <num_scan_inputs = 2, body = step (float[B,H] before, float[B,H] f, float[B,H] u) => (float[B,H] c, float[B,H] c_out)
    {
        kept = Mul (f, before)
        c = Add (kept, u)
        c_out = Identity (c)
    }> (c0, forget, added)
}"""

_LSTM_BACKWARD = """
LSTMBackward (dY, dhT, dcT, gates, C, before, R) => (dA, dh0, dc0)
{
    dh0, dc0, dA = Scan <num_scan_inputs = 4, scan_input_directions = [1, 1, 1, 1], scan_output_directions = [1],
        body = step (float[B,H] dh_in, float[B,H] dc_in, float[B,H] dy, float[B,G] gate, float[B,H] c, float[B,H] c_before)
            => (float[B,H] dh_out, float[B,H] dc_out, float[B,G] da_out)
    {
        one = Constant <value = float {1.0}> ()
        i, o, f, g = Split <SPLIT4> (gate)
        dh = Add (dy, dh_in)
        t = Tanh (c)
        tt = Mul (t, t)
        t_slope = Sub (one, tt)
        through = Mul (o, t_slope)
        dc_here = Mul (dh, through)
        dc = Add (dc_in, dc_here)
        di = Mul (dc, g)
        do = Mul (dh, t)
        df = Mul (dc, c_before)
        dg = Mul (dc, i)
        i_rest = Sub (one, i)
        o_rest = Sub (one, o)
        f_rest = Sub (one, f)
        gg = Mul (g, g)
        i_slope = Mul (i, i_rest)
        o_slope = Mul (o, o_rest)
        f_slope = Mul (f, f_rest)
        g_slope = Sub (one, gg)
        ai = Mul (di, i_slope)
        ao = Mul (do, o_slope)
        af = Mul (df, f_slope)
        ag = Mul (dg, g_slope)
        da = Concat <axis = 1> (ai, ao, af, ag)
        dh_out = MatMul (da, R)
        dc_out = Mul (dc, f)
        da_out = Identity (da)
    }> (dhT, dcT, dY, gates, C, before)
}"""

_GRU_GATES = """one = Constant <value = float {1.0}> ()
        z, r, n = Split <SPLIT3> (gate)
        dh = Add (dy, dh_in)
        z_rest = Sub (one, z)
        r_rest = Sub (one, r)
        nn = Mul (n, n)
        n_slope = Sub (one, nn)
        dn = Mul (dh, z_rest)
        an = Mul (dn, n_slope)
        difference = Sub (h_before, n)
        dz = Mul (dh, difference)
        z_slope = Mul (z, z_rest)
        az = Mul (dz, z_slope)
        r_slope = Mul (r, r_rest)"""
"""What both forms of a GRU have in common: the gradients of z's and n's pre-activations."""

_GRU_BACKWARD = """
GRUBackward (dY, dhT, gates, before, hidden, R) => (dA, dh0)
{
    dh0, dA = Scan <num_scan_inputs = 4, scan_input_directions = [1, 1, 1, 1], scan_output_directions = [1],
        body = step (float[B,H] dh_in, float[B,H] dy, float[B,G] gate, float[B,H] h_before, float[B,H] q)
            => (float[B,H] dh_out, float[B,G] da_out)
    {
        GRU_GATES
        dr = Mul (an, q)
        ar = Mul (dr, r_slope)
        dq = Mul (an, r)
        recurrent = Concat <axis = 1> (az, ar, dq)
        dh_weights = MatMul (recurrent, R)
        dh_kept = Mul (dh, z)
        dh_out = Add (dh_weights, dh_kept)
        da_out = Concat <axis = 1> (az, ar, an)
    }> (dhT, dY, gates, before, hidden)
}"""

_GRU_BACKWARD_RESET_FIRST = """
GRUBackwardResetFirst (dY, dhT, gates, before, R, Rh) => (dA, dh0)
{
    dh0, dA = Scan <num_scan_inputs = 3, scan_input_directions = [1, 1, 1], scan_output_directions = [1],
        body = step (float[B,H] dh_in, float[B,H] dy, float[B,G] gate, float[B,H] h_before) => (float[B,H] dh_out, float[B,G] da_out)
    {
        GRU_GATES
        d_reset = MatMul (an, Rh)
        dr = Mul (d_reset, h_before)
        ar = Mul (dr, r_slope)
        recurrent = Concat <axis = 1> (az, ar)
        dh_weights = MatMul (recurrent, R)
        dh_kept = Mul (dh, z)
        dh_reset = Mul (d_reset, r)
        dh_some = Add (dh_weights, dh_kept)
        dh_out = Add (dh_some, dh_reset)
        da_out = Concat <axis = 1> (az, ar, an)
    }> (dhT, dY, gates, before)
}"""

_RNN_BACKWARD = """
RNNBackward (dY, dhT, slope, R) => (dA, dh0)
{
    dh0, dA = Scan <num_scan_inputs = 2, scan_input_directions = [1, 1], scan_output_directions = [1],
        body = step (float[B,H] dh_in, float[B,H] dy, float[B,H] s) => (float[B,H] dh_out, float[B,H] da_out)
    {
        dh = Add (dy, dh_in)
        da = Mul (dh, s)
        dh_out = MatMul (da, R)
        da_out = Identity (da)
    }> (dhT, dY, slope)
}"""

_ADAM_UPDATE = """
AdamUpdate <beta1, beta2, rest1, rest2, epsilon> (p, grad, mean, square, hyper) => (new_p, new_mean, new_square)
{
    at0 = Constant <value_int = 0> ()
    at1 = Constant <value_int = 1> ()
    at2 = Constant <value_int = 2> ()
    rate = Gather <axis = 0> (hyper, at0)
    root = Gather <axis = 0> (hyper, at1)
    kept = Gather <axis = 0> (hyper, at2)
    b1 = Constant <value_float: float = @beta1> ()
    b2 = Constant <value_float: float = @beta2> ()
    r1 = Constant <value_float: float = @rest1> ()
    r2 = Constant <value_float: float = @rest2> ()
    e = Constant <value_float: float = @epsilon> ()
    old_mean = Mul (mean, b1)
    add_mean = Mul (grad, r1)
    new_mean = Add (old_mean, add_mean)
    old_square = Mul (square, b2)
    squared = Mul (grad, grad)
    add_square = Mul (squared, r2)
    new_square = Add (old_square, add_square)
    deviation = Sqrt (new_square)
    scaled = Mul (deviation, root)
    divisor = Add (scaled, e)
    along = Mul (new_mean, rate)
    change = Div (along, divisor)
    old_p = Mul (p, kept)
    new_p = Sub (old_p, change)
}"""

_MOMENTUM_UPDATE = """
MomentumUpdate <momentum, decay, direct, along> (p, grad, velocity, hyper) => (new_p, new_velocity)
{
    at0 = Constant <value_int = 0> ()
    rate = Gather <axis = 0> (hyper, at0)
    m = Constant <value_float: float = @momentum> ()
    d = Constant <value_float: float = @decay> ()
    of_grad = Constant <value_float: float = @direct> ()
    of_velocity = Constant <value_float: float = @along> ()
    decayed = Mul (p, d)
    g = Add (grad, decayed)
    kept = Mul (velocity, m)
    new_velocity = Add (kept, g)
    one = Mul (g, of_grad)
    other = Mul (new_velocity, of_velocity)
    both = Add (one, other)
    change = Mul (both, rate)
    new_p = Sub (p, change)
}"""

_MAX_POOL_GRADIENT = """
MaxPoolGradient <kernel_shape, strides, dilations, before, count, shape> (dy, indices) => (dx)
{
    total = Constant <value_ints: ints = @count> ()
    full = Constant <value_ints: ints = @shape> ()
    flat = Constant <value_ints = [-1]> ()
    zeros = ConstantOfShape (total)
    places = Reshape (indices, flat)
    given = Reshape (dy, flat)
    added = ScatterElements <axis = 0, reduction = "add"> (zeros, places, given)
    dx = Reshape (added, full)
}"""

_AVERAGE_POOL_GRADIENT = """
AveragePoolGradient <kernel_shape, strides, dilations, before, planes, taps, pads, beyond, shape> (dy, share) => (dx)
{
    rows = Constant <value_ints: ints = @planes> ()
    window = Constant <value_ints: ints = @taps> ()
    full = Constant <value_ints: ints = @shape> ()
    one = ConstantOfShape <value = float[1] {1.0}> (window)
    shared = Mul (dy, share)
    maps = Reshape (shared, rows)
    spread = ConvTranspose <strides: ints = @strides, dilations: ints = @dilations, pads: ints = @pads, output_padding: ints = @beyond>
        (maps, one)
    dx = Reshape (spread, full)
}"""

_DEPTHWISE_WEIGHT_GRADIENT = """
DepthwiseWeightGradient <kernel_shape, strides, dilations, pads, group, planes> (image, maps) => (dw)
{
    rows = Constant <value_ints: ints = @planes> ()
    size = Constant <value_ints: ints = @kernel_shape> ()
    spatial = Constant <value_ints = [2, 3]> ()
    none = Constant <value_ints = [0, 0]> ()
    turned = Transpose <perm = [1, 0, 2, 3]> (image)
    one = Reshape (turned, rows)
    taps = Transpose <perm = [1, 0, 2, 3]> (maps)
    whole = Conv <strides: ints = @dilations, dilations: ints = @strides, pads: ints = @pads, group: int = @group> (one, taps)
    kept = Slice (whole, none, size, spatial)
    dw = Transpose <perm = [1, 0, 2, 3]> (kept)
}"""

_CONV_WEIGHT_GRADIENT = """
ConvWeightGradient <kernel_shape, strides, dilations, pads, group, image_split, maps_split, turn_image, turn_maps, image_flat, maps_flat,
    axes, first, back> (image, maps) => (dw)
{
    parts_of_image = Constant <value_ints: ints = @image_split> ()
    parts_of_maps = Constant <value_ints: ints = @maps_split> ()
    flat_image = Constant <value_ints: ints = @image_flat> ()
    flat_maps = Constant <value_ints: ints = @maps_flat> ()
    size = Constant <value_ints: ints = @kernel_shape> ()
    spatial = Constant <value_ints: ints = @axes> ()
    none = Constant <value_ints: ints = @first> ()
    image_parts = Reshape (image, parts_of_image)
    maps_parts = Reshape (maps, parts_of_maps)
    image_turned = Transpose <perm: ints = @turn_image> (image_parts)
    maps_turned = Transpose <perm: ints = @turn_maps> (maps_parts)
    images = Reshape (image_turned, flat_image)
    taps = Reshape (maps_turned, flat_maps)
    whole = Conv <strides: ints = @dilations, dilations: ints = @strides, pads: ints = @pads, group: int = @group> (images, taps)
    kept = Slice (whole, none, size, spatial)
    dw = Transpose <perm: ints = @back> (kept)
}"""

_SOFTMAX_CROSS_ENTROPY = """
SoftmaxCrossEntropy <classes> (z, label, weight) => (losses, dz)
{
    count = Constant <value_int: int = @classes> ()
    depth = Cast <to = 6> (count)
    ends = Constant <value_floats = [0.0, 1.0]> ()
    last = Constant <value_ints = [1]> ()
    logs = LogSoftmax <axis = 1> (z)
    onehot = OneHot <axis = 1> (label, depth, ends)
    column = Unsqueeze (weight, last)
    hits = Mul (logs, onehot)
    weighted = Mul (hits, column)
    added = ReduceSum <keepdims = 0> (weighted, last)
    losses = Neg (added)
    p = Exp (logs)
    difference = Sub (p, onehot)
    dz = Mul (difference, column)
}"""

TEXTS = {
    text.split()[0]: text
    for text in (
        _LSTM_CELLS,
        _LSTM_BACKWARD,
        _GRU_BACKWARD,
        _GRU_BACKWARD_RESET_FIRST,
        _RNN_BACKWARD,
        _ADAM_UPDATE,
        _MOMENTUM_UPDATE,
        _MAX_POOL_GRADIENT,
        _AVERAGE_POOL_GRADIENT,
        _DEPTHWISE_WEIGHT_GRADIENT,
        _CONV_WEIGHT_GRADIENT,
        _SOFTMAX_CROSS_ENTROPY,
    )
}
"""Name -> body, in ONNX's text form."""


@cache
def function(name: str, opset: int) -> onnx.FunctionProto:
    """A function for a model of this opset."""
    text = TEXTS[name].replace("GRU_GATES", _GRU_GATES)
    for parts in (3, 4):
        text = text.replace(f"SPLIT{parts}", "axis = 1" + (f", num_outputs = {parts}" if opset >= 18 else ""))
    proto: onnx.FunctionProto = onnx.parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["" : {opset}]>\n{text}'
    )
    return proto
