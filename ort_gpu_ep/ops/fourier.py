"""DFT: sums over an axis with a table of cosines and sines, whose number grows with the square of the length; windows
for it; and STFT, the product of a signal's frames, which overlap where they lie, and the matrix of a DFT.
"""

from __future__ import annotations

from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INTS, TensorType
from ort_gpu_ep.kernels.problems import Known, normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel, op, result_dtype
from ort_gpu_ep.ops.axes import around, axis_of, number_of, replaced
from ort_gpu_ep.ops.contraction import Matrix, Product, lower_product

MAX_LENGTH = (1 << 27) - 1
"""Eight times a place on the circle, or on two, fits 32 bits."""

WINDOWS = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0), "BlackmanWindow": (0.42, 0.5, 0.08)}
"""Factors of 1, -cos(2 pi t), cos(4 pi t)."""

record("dft_twiddles.wgsl", "elementwise", problems=[problem("DFT", 20, normal(2, 31, 2))])
record("window.wgsl", "elementwise")
record(
    "dft.wgsl",
    "direct",
    loop_bound=lambda k: k["N"] + ceil_div(k["N"], 32),
    flops=lambda k: 4 * k.size("y") * k["N"],
    problems=[
        problem("DFT", 20, normal(2, 67, 3, 2), None, Known(1)),
        problem("DFT", 20, normal(3, 129, 1), onesided=1),
        problem("DFT", 20, normal(3, 64, 2), Known(81), inverse=1),
        problem("DFT", 17, normal(3, 33, 2), inverse=1, onesided=1),
    ],
)


MAX_FRAME = 1 << 16
"""A place on the circle of a frame, before whole turns are taken off it, fits 32 bits."""

record(
    "dft_matrix.wgsl",
    "elementwise",
    problems=[
        problem("STFT", 17, normal(2, 67, 1), Known(5), normal(24), tolerance=1e-4),
        problem("STFT", 17, normal(2, 67, 2), Known(5), None, Known(24), onesided=0, tolerance=1e-4),
    ],
)


@op("DFT", since=17, dtypes={"T1": (FLOAT32, FLOAT16)}, bindings="x _length? _axis? -> y", epilogue=True)
def dft(node: BoundNode) -> Lowering:
    """y[k] = sum over n of x[n] e^(-2 pi i k n / N) along an axis, or the inverse; `onesided`: of or to half a
    spectrum.

    x, y: [..., 1] of real, [..., 2] of complex numbers; N: `dft_length`, or the axis' size, shorter signals continued
    by zeros.
    """
    x, inverse, onesided = node.input(0), bool(node.attr("inverse")), bool(node.attr("onesided"))
    axis = _axis(node)
    parts, length = x.shape[-1], x.shape[axis]
    if parts not in (1, 2) or (onesided and not inverse and parts != 1):
        raise UnsupportedNodeError(
            Code.RANK,
            f"DFT of {x.type} with onesided={int(onesided)}; taken: [..., 1], and [..., 2] unless it gives "
            f"half a spectrum",
        )
    half = inverse and onesided
    n = number_of(node, 1) if node.has(1) else 2 * (length - 1) if half else length
    if not 1 <= n <= MAX_LENGTH:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"DFT of {x.type} along axis {axis} with length {n}; taken: 1 to {MAX_LENGTH}"
        )
    size = n // 2 + 1 if onesided and not inverse else n
    out = TensorType(x.dtype, (*replaced(x.shape, axis, size)[:-1], 1 if half else 2))
    if out.size and not x.size:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"DFT of {x.type}, which has no elements, to {out}")
    twiddles = TensorType(FLOAT32, (n, 2))
    consts = {
        "N": n,
        "LENGTH": length,
        "OUT": size,
        "INNER": around(x.shape[:-1], axis)[2],
        "PARTS": parts,
        "OUT_PARTS": out.shape[-1],
        "INVERSE": inverse,
        "HALF": half,
    }
    return Lowering(
        (out,),
        (
            kernel("dft_twiddles.wgsl", [twiddles], consts={"N": n}, reads={}, writes={"twiddles": "twiddles"}),
            kernel("dft.wgsl", [out], consts=consts, reads={"x": 0, "twiddles": "twiddles"}, writes={"y": 0}),
        ),
        (("twiddles", twiddles),),
    )


@op(
    "STFT",
    since=17,
    dtypes={"T1": (FLOAT32, FLOAT16), "T2": INTS},
    bindings="x _step window? _length? c? -> y",
    epilogue=True,
)
def stft(node: BoundNode) -> Lowering:
    """y[b, f] = the DFT of window * the frame of signal b that begins at f `frame_step`; `onesided`: the first half of
    it.

    x: [B, L] or [B, L, 1] of real, [B, L, 2] of complex numbers; window: [frame_length]; y: [B, frames, frame_length or
    its half, 2].
    """
    x, step, window = node.input(0), number_of(node, 1), node.optional(2)
    parts = x.shape[2] if x.rank == 3 else 1
    if x.rank not in (2, 3) or parts not in (1, 2) or (window is not None and window.rank != 1):
        raise UnsupportedNodeError(
            Code.RANK,
            f"STFT of {x.type} with window {window and window.type}; taken: [B, L], [B, L, 1] or [B, L, 2], and "
            f"[frame_length]",
        )
    if window is None and not node.has(3):
        raise UnsupportedNodeError(Code.ATTRIBUTE, "STFT without window and frame_length")
    n = number_of(node, 3) if node.has(3) else int(window.shape[0]) if window is not None else 0
    batch, length = x.shape[0], x.shape[1]
    if not 1 <= n <= MAX_FRAME or step < 1 or (window is not None and window.shape != (n,)) or length < n:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"STFT of {x.type} in frames of {n}, a step of {step} apart, with window {window and window.type}; "
            f"taken: 1 to "
            f"{MAX_FRAME}, and no more than the signal has, steps of 1 and more, a window as long as a frame",
        )
    frames, bins = (length - n) // step + 1, n // 2 + 1 if node.attr("onesided") else n
    matrix = TensorType(FLOAT32, (n * parts, 2 * bins))
    lowering = kernel(
        "dft_matrix.wgsl",
        [matrix],
        consts={"N": n, "BINS": bins, "PARTS": parts},
        reads={"window": 2} if window is not None else {},
        writes={"y": "matrix"},
    )
    signal = Matrix(0, Strided((batch,), (length * parts,)), step * parts, 1)
    product = Product(
        batch,
        frames,
        2 * bins,
        n * parts,
        signal,
        Matrix("matrix", Strided((1,), (0,)), 1, 2 * bins),
        target=node.target,
    )
    lowered = lower_product(product, TensorType(x.dtype, (batch, frames, bins, 2)))
    return replace(
        lowered,
        kernels=(lowering, *lowered.kernels),
        temps=(("matrix", matrix), *lowered.temps),
        once=("matrix",) if window is None else (),
    )


def _axis(node: BoundNode) -> int:
    """The axis, which is not the last: an attribute before opset 20, then an input."""
    x, operand = node.input(0), node.optional(2)
    number = int(node.attr("axis")) if node.version < 20 else number_of(node, 2) if operand else -2
    axis = axis_of(node, number, x.rank)
    if axis == x.rank - 1:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"DFT of {x.type} along its last axis, which holds real and imaginary part"
        )
    return axis


def _window(name: str) -> None:
    """Adds the row of a window."""

    def build(node: BoundNode) -> Kernel:
        size, dtype = number_of(node, 0), result_dtype(int(node.attr("output_datatype")))
        if dtype not in (FLOAT32, FLOAT16):
            raise UnsupportedNodeError(Code.DTYPE, f"{node.op} of {dtype}; taken: float32, float16")
        period = size if node.attr("periodic") else size - 1
        if size < 0 or period > MAX_LENGTH or (size and period < 1):
            raise UnsupportedNodeError(
                Code.ATTRIBUTE,
                f"{node.op} of size {size}, periodic={node.attr('periodic')}; taken: a period of 1 to {MAX_LENGTH}",
            )
        consts: dict[str, Const] = {f"A{k}": factor for k, factor in enumerate(WINDOWS[name])}
        return kernel("window.wgsl", [TensorType(dtype, (size,))], consts=consts | {"PERIOD": period})

    one, two, three = (f"{factor:.4g}" for factor in WINDOWS[name])
    last = f" + {three} cos(4 pi t)" if WINDOWS[name][2] else ""
    build.__doc__ = f"y[i] = {one} - {two} cos(2 pi t){last}, t = i / size, or i / (size - 1) unless `periodic`."
    op(name, since=17, dtypes={"T1": INTS}, bindings="_size -> y")(build)


for _name in WINDOWS:
    _window(_name)
