"""RotaryEmbedding: pairs of elements turned by angles that depend on the token's position."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT64, Shape
from ort_gpu_ep.kernels.problems import integers, normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Operand, Strided, kernel, op

FLOATING = (FLOAT32, FLOAT16)

record(
    "rotary_embedding.wgsl",
    "gather",
    data_indices=True,
    pairs=True,
    nbytes=lambda k: 3 * k.nbytes("x") + 2 * k.nbytes("y"),
    problems=[
        problem(
            "RotaryEmbedding",
            23,
            normal(2, 3, 5, 14),
            normal(11, 5),
            normal(11, 5),
            integers(0, 11, 2, 5),
            rotary_embedding_dim=10,
        ),
        problem("RotaryEmbedding", 23, normal(2, 5, 24), normal(2, 5, 4), normal(2, 5, 4), num_heads=3, interleaved=1),
    ],
)


@op("RotaryEmbedding", dtypes={"T": FLOATING, "M": (INT64,)}, bindings="x cosines sines positions? -> y", epilogue=True)
def rotary_embedding(node: BoundNode) -> Kernel:
    """y = x with pairs of a head's elements turned by the angles of the token's position.

    x, y: [N, heads, L, head] or [N, L, hidden]; cosines, sines: [positions, pairs], or without positions [N, L, pairs];
    positions: [N, L].
    """
    x, cos, sin, positions = node.input(0), node.input(1), node.input(2), node.optional(3)
    batch, length, head = _layout(node, x)
    rows = cos.shape[:1] if positions else (batch, length)
    width = int(node.attr("rotary_embedding_dim")) or head
    _check(node, (x, cos, sin), head, width, rows)
    if positions and positions.shape != (batch, length):
        raise UnsupportedNodeError(
            Code.RANK, f"RotaryEmbedding of {x.type} with positions {positions.type}; taken: [{batch}, {length}]"
        )
    token, nowhere = _token(x, length), Strided((x.size,), (0,))
    return _turned(node, head, (nowhere, token) if positions else (token, nowhere))


@op(
    "RotaryEmbedding",
    domain="com.microsoft",
    dtypes={"T": FLOATING, "M": (INT64,)},
    bindings="x positions cosines sines -> y",
    epilogue=True,
)
def rotary_embedding_contrib(node: BoundNode) -> Kernel:
    """As ONNX's; positions: [N, L], or the first one's as [1].

    cosines, sines: [positions, pairs]. x of [N, L, hidden] without num_heads has heads of 2 * pairs elements.
    """
    x, positions, cos, sin = (node.input(k) for k in range(4))
    if node.attr("is_packed_batching") or node.attr("scale") != 1:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with packed batches, or a scale that is not 1")
    width = int(node.attr("rotary_embedding_dim"))
    batch, length, head = _layout(node, x, 0 if width or cos.rank != 2 else 2 * cos.shape[1])
    _check(node, (x, cos, sin), head, width or head, cos.shape[:1])
    if positions.shape not in ((1,), (batch, length)):
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of {x.type} with positions {positions.type}; taken: [1] or [{batch}, {length}]"
        )
    if positions.rank == 1:
        return _turned(node, head, (_token(x, 0), Strided((x.size,), (0,))))
    return _turned(node, head, (Strided((x.size,), (0,)), _token(x, length)))


def _layout(node: BoundNode, x: Operand, head: int = 0) -> tuple[int, int, int]:
    """(N, L, elements of a head). head: what it is where x has no axis of heads and the node doesn't say how many there
    are."""
    if x.rank == 4:
        return x.shape[0], x.shape[2], x.shape[3]
    heads = int(node.attr("num_heads") or 0)
    if x.rank != 3 or not (heads or head) or x.shape[2] % (heads or head):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} of {x.type} with {heads} heads; taken: [N, heads, L, head], or [N, L, hidden] of equal heads",
        )
    return x.shape[0], x.shape[1], x.shape[2] // heads if heads else head


def _check(node: BoundNode, inputs: tuple[Operand, Operand, Operand], head: int, width: int, rows: Shape) -> None:
    """Declines caches that do not have the rows that are asked for, each of width / 2 pairs."""
    x, cos, sin = inputs
    expected = (*rows, width // 2)
    if width % 2 or width > head or cos.shape != expected or sin.shape != expected:
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} of {x.type} by {cos.type} and {sin.type}: {width} of a head's {head} elements are turned; "
            f"expected an even number, and both of {list(expected)}",
        )
    if x.size and not cos.size and width:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} of {x.type} by {cos.type}, which has no rows")


def _token(x: Operand, batch_step: int) -> Strided:
    """Of an element of x: its batch times batch_step plus its place in the sequence."""
    if x.rank == 4:
        return Strided(x.shape, (batch_step, 0, 1, 0))
    return Strided(x.shape, (batch_step, 1, 0))


def _turned(node: BoundNode, head: int, row: tuple[Strided, Strided]) -> Kernel:
    """row: `step` and `place` of the shader."""
    x, cos = node.input(0), node.input(1 if not node.node.domain else 2)
    half = cos.shape[-1]
    positions = bool(node.node.domain) or node.has(3)
    consts = {
        "HEAD": head,
        "HALF": half,
        "ROWS": cos.size // max(half, 1),
        "INTERLEAVED": bool(node.attr("interleaved")),
        "POSITIONS": positions,
    }
    return kernel(
        "rotary_embedding.wgsl", [x.type], consts=consts, indices={"step": row[0], "place": row[1]}, reports=positions
    )
