"""Parts around attention: caches of keys and values, masks brought to one additive form, scores as an output."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import same
from ort_gpu_ep.ir.types import BOOL, FLOAT32, FLOATS, DType, Shape, TensorType
from ort_gpu_ep.kernels.problems import integers, normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import (
    BoundNode,
    Const,
    Kernel,
    Lowering,
    Operand,
    broadcast,
    broadcast_strides,
    kernel,
)
from ort_gpu_ep.ops.attention import Heads, Mask, Options, attend, mask_consts
from ort_gpu_ep.ops.reduce import rows_of

_QUERIES, _KEYS = normal(2, 4, 5, 8), normal(2, 2, 7, 8)

record(
    "assemble_heads.wgsl",
    "movement",
    problems=[
        problem(
            "Attention",
            23,
            _QUERIES,
            _KEYS,
            normal(2, 2, 7, 12),
            None,
            normal(2, 2, 9, 8),
            normal(2, 2, 9, 12),
            outputs=3,
        ),
        problem("Attention", 23, normal(1, 3, 5, 6), normal(1, 3, 7, 6), normal(1, 3, 7, 10)),
    ],
)
record(
    "attention_mask.wgsl",
    "elementwise",
    pairs=True,
    problems=[problem("Attention", 24, _QUERIES, _KEYS, _KEYS, None, None, None, integers(5, 8, 2), is_causal=1)],
)
record(
    "attention_scores.wgsl",
    "direct",
    loop_bound=lambda k: k["WIDTH"],
    flops=lambda k: 2 * k.size("y") * k["WIDTH"],
    problems=[
        problem(
            "Attention",
            23,
            _QUERIES,
            _KEYS,
            _KEYS,
            normal(5, 16),
            normal(2, 2, 9, 8),
            normal(2, 2, 9, 8),
            outputs=4,
            qk_matmul_output_mode=mode,
            softcap=2.0 if mode else 0.0,
        )
        for mode in (0, 1, 2, 3)
    ],
)

SCORES = 3
"""Of Attention and MultiHeadAttention: the output of scores."""

NO_PADDING, BY_KEY, ENDS, ENDS_AND_STARTS, COUNTS = range(5)
"""What says which keys are padding: PADDING of attention_mask.wgsl."""


@dataclass(frozen=True, slots=True)
class Padding:
    """kind: of the above. source: the input. strides: of a batch and a query, of BY_KEY. row: from which queries count
    there."""

    kind: int
    source: int
    strides: tuple[int, int] = (0, 0)
    row: int = 0

    @property
    def by_query(self) -> bool:
        """Whether queries of a batch differ."""
        return self.kind == COUNTS or bool(self.strides[1])


def contiguous(source: int | str, shape: tuple[int, int, int, int], first: int = 0) -> Heads:
    """[batch, head, position, element] as it is stored."""
    _, heads, rows, width = shape
    return Heads(source, shape, (heads * rows * width, rows * width, width), first)


def split(operand: Operand, source: int, count: int | None, what: str) -> Heads:
    """An input [B, heads, S, D] or [B, S, heads D]. Raises UnsupportedNodeError where it is neither."""
    if operand.rank == 4:
        batch, heads, rows, width = operand.shape
        return contiguous(source, (batch, heads, rows, int(width)))
    if operand.rank != 3 or not count or count < 1 or operand.shape[2] % count:
        raise UnsupportedNodeError(Code.RANK, f"{what} of {operand.type} with {count} heads")
    batch, length, hidden = operand.shape
    head = int(hidden) // count
    return Heads(source, (batch, count, length, head), (length * hidden, head, hidden))


@dataclass
class Assembly:
    """The kernels of a node that is attention with something around it, as they come together. dtype: of queries, keys
    and values."""

    node: BoundNode
    dtype: DType
    kernels: list[Kernel] = field(default_factory=list)
    temps: dict[str, TensorType] = field(default_factory=dict)
    stored: list[tuple[str, int]] = field(default_factory=list)

    def rows(
        self,
        name: str,
        new: Heads,
        past: Heads | None = None,
        bias: tuple[int, int] | None = None,
        present: int | None = None,
    ) -> Heads:
        """Rows of this step behind those of a cache, as attention reads them; as they are where nothing is to be done.

        bias: the input that is added to those of this step, and where it begins there. present: the output that the
        whole is stored as.
        """
        batch, heads, count, width = new.shape
        shape = (batch, heads, (past.shape[2] if past else 0) + count, width)
        if past is None and bias is None and present is None and _lies_right(new):
            return new
        if present is not None:
            self._assemble(name, new, past, bias, TensorType(self.dtype, shape))
            self.stored.append((name, present))
            new, past, bias, name = contiguous(name, shape), None, None, f"{name}_padded"
        if past is None and bias is None and _lies_right(new):
            return new
        padded = (*shape[:3], -(-width // 4) * 4)
        self._assemble(name, new, past, bias, TensorType(self.dtype, padded))
        return contiguous(name, padded)

    def _assemble(
        self, name: str, new: Heads, past: Heads | None, bias: tuple[int, int] | None, out: TensorType
    ) -> None:
        self.temps[name] = out
        self.kernels.append(assembled(new, past, bias, out, name))

    def mask(
        self,
        scores: Shape,
        bias: tuple[int, Operand] | None,
        padding: Padding | None,
        filtered: float,
        options: Options,
        window: tuple[int, int] = (-1, -1),
        last_sees_all: bool = False,
    ) -> tuple[Mask, Options]:
        """What attention adds to its scores [B, heads, S, keys], and the options as they are then.

        filtered: what a key that is padding gets added. window: keys before and behind a query's own that it sees; -1:
        any. last_sees_all: where it is causal, the last query sees keys behind its own, too.
        """
        left, right = window
        if options.causal:
            right = -1
        if padding is None and right < 0 and not last_sees_all and (bias is None or _is_whole(bias[1], scores)):
            return bias, replace(options, window=left + 1 if left >= 0 else 0)
        by_query = options.causal or left >= 0 or right >= 0
        causal: Const = 2 if last_sees_all and options.causal else options.causal
        self._mask(
            scores, bias, padding or Padding(NO_PADDING, -1), filtered, options.before, (left, right, causal, by_query)
        )
        return ("mask", Operand("mask", self.temps["mask"])), replace(options, causal=False, window=0)

    def _mask(
        self,
        scores: Shape,
        bias: tuple[int, Operand] | None,
        padding: Padding,
        filtered: float,
        before: int,
        window: tuple[int, int, Const, bool],
    ) -> None:
        """The kernel that writes the temporary `mask`."""
        left, right, causal, by_query = window
        bias_shape = bias[1].shape if bias else ()
        if bias:
            _check_bias(bias[1], scores)
        full = (1,) * (4 - len(bias_shape)) + bias_shape
        batch = scores[0] if padding.kind != NO_PADDING else full[0]
        shape = (batch, full[1], scores[2] if by_query or padding.by_query else full[2], scores[3])
        steps = broadcast_strides(bias_shape, (*shape[:3], full[3])) if bias else (0, 0, 0, 0)
        consts: dict[str, Const] = {
            "HEADS": shape[1],
            "QUERIES": shape[2],
            "KEYS": shape[3],
            "BATCHES": scores[0],
            "BIAS": 0 if bias is None else 2 if bias[1].dtype is BOOL else 1,
            "BIAS_KEYS": shape[3] if same(full[3], 1) else full[3],
            **{f"BIAS_{axis}": step for axis, step in zip("BHQK", steps, strict=True)},
            "PADDING": padding.kind,
            "PADDING_B": padding.strides[0],
            "PADDING_Q": padding.strides[1],
            "PADDING_ROW": padding.row,
            "FILTER": filtered,
            "BEFORE": before,
            "CAUSAL": causal,
            "LEFT": left + 1,
            "RIGHT": right + 1,
        }
        reads = {"bias": bias[0]} if bias else {}
        if padding.kind != NO_PADDING:
            reads["lengths" if padding.kind == COUNTS else "padding"] = padding.source
        self.temps["mask"] = TensorType(FLOAT32, shape)
        self.kernels.append(
            kernel(
                "attention_mask.wgsl",
                [self.temps["mask"]],
                consts=consts,
                reads=reads,
                writes={"y": "mask"},
                reports=padding.kind == COUNTS,
            )
        )

    def attend(
        self, heads: tuple[Heads, Heads, Heads], width: int, mask: Mask, options: Options, three: bool
    ) -> TensorType:
        """Attention into output 0, [B, S, heads width] if `three`, else [B, heads, S, width]. width: of a head's values
        without padding."""
        q, k, v = heads
        batch, count, rows, _ = q.shape
        shape = (batch, rows, count * width) if three else (batch, count, rows, width)
        out, padded = TensorType(self.dtype, shape), v.shape[3]
        strides = (
            (rows * count * padded, padded, count * padded) if three else (count * rows * padded, rows * padded, padded)
        )
        if padded == width:
            self.kernels += attend(self.node, q, k, v, mask, options, out, strides).kernels
            return out
        self.temps["padded"] = TensorType(self.dtype, (*shape[:2], count, padded) if three else (*shape[:3], padded))
        self.kernels += attend(self.node, q, k, v, mask, options, self.temps["padded"], strides, "padded").kernels
        seen = (batch, rows, count) if three else (batch, count, rows)
        stored = contiguous("padded", (*seen, padded))
        self.kernels.append(
            assembled(replace(stored, shape=(*seen, width)), None, None, TensorType(self.dtype, (*seen, width)), 0, out)
        )
        return out

    def scores(self, q: Heads, k: Heads, mask: Mask, options: Options, stage: int, finite: bool = False) -> TensorType:
        """The scores as output SCORES: 0 as they are, 1 behind the cap, 2 with the mask, 3 behind softmax. finite:
        never minus infinity."""
        batch, count, rows, width = q.shape
        shape = (batch, count, rows, k.shape[2])
        out = TensorType(self.dtype, shape)
        names = {"SCALE", "CAPPED", "CAP", "CAUSAL", "BEFORE", "WINDOW"}
        consts: dict[str, Const] = {
            "STAGE": min(stage, 2),
            "FINITE": finite,
            "SQ": rows,
            "SK": shape[3],
            "WIDTH": width,
            "HEADS": count,
            "GROUP": count // int(k.shape[1]),
            **q.consts("Q", 1),
            **k.consts("K", 1),
            **{n: v for n, v in options.consts().items() if n in names},
            **mask_consts(mask, shape, options.least if stage == 3 else 0.0),
        }
        target: int | str = SCORES
        if stage == 3:
            target = "scores"
            self.temps["scores"] = TensorType(FLOAT32, shape)
        self.kernels.append(
            kernel(
                "attention_scores.wgsl",
                [TensorType(FLOAT32, shape) if stage == 3 else out],
                consts=consts,
                reads={"q": q.source, "k": k.source, **({"mask": mask[0]} if mask else {})},
                writes={"y": target},
            )
        )
        if stage == 3:
            layout = rows_of(shape, (3,))
            self.kernels.append(
                kernel(
                    "softmax.wgsl",
                    [out],
                    consts={"KIND": 3, **layout.consts},
                    indices=layout.indices,
                    groups=layout.groups,
                    workgroup_size=layout.workgroup_size,
                    workgroup_nbytes=4 * layout.workgroup_size,
                    reads={"x": "scores"},
                    writes={"y": SCORES},
                )
            )
        return out

    def lowering(self, outputs: tuple[TensorType | None, ...]) -> Lowering:
        wanted_outputs = tuple(
            o if self.node.wants(i) else None for i, o in enumerate(outputs[: max(1, len(self.node.node.outputs))])
        )
        return Lowering(wanted_outputs, tuple(self.kernels), tuple(self.temps.items()), stored=tuple(self.stored))


def assembled(
    new: Heads,
    past: Heads | None,
    bias: tuple[int, int] | None,
    out: TensorType,
    target: int | str,
    stored: TensorType | None = None,
    part: int = 0,
) -> Kernel:
    """The kernel that puts rows behind rows. out: [batches, heads, rows, width]. stored: what it is as an output. part:
    between the parts of `new` where out has more batches than that.
    """
    _, heads, rows, width = out.shape
    consts: dict[str, Const] = {
        "STORED": width,
        "ROWS": rows,
        "HEADS": heads,
        "WIDTH": new.shape[3],
        "BATCHES": new.shape[0],
        "X_PART": part,
        **new.consts("X", 1),
        **(past or contiguous(-1, (0, 0, 0, 0))).consts("P", 1),
        "PAST": past.shape[2] if past else 0,
        "BIAS_FIRST": bias[1] if bias else 0,
    }
    reads: dict[str, int | str | None] = {"past": past.source if past else None, "bias": bias[0] if bias else None}
    built = kernel(
        "assemble_heads.wgsl",
        [stored or out],
        consts=consts,
        reads={"x": new.source, **{n: at for n, at in reads.items() if at is not None}},
        writes={"y": target},
    )
    return replace(built, optionals=tuple((name, at is not None) for name, at in reads.items()))


def _lies_right(heads: Heads) -> bool:
    """Whether attention can read them by fours."""
    return not any(number % 4 for number in (heads.shape[3], *heads.strides, heads.first))


def _is_whole(mask: Operand, scores: Shape) -> bool:
    """Whether a mask has a number for each key, or one for all."""
    return mask.rank == 0 or same(mask.shape[-1], 1) or bool(mask.shape[-1] == scores[3])


def _check_bias(bias: Operand, scores: Shape) -> None:
    expected = (*scores[:3], bias.shape[-1] if bias.rank else 1)
    if (
        bias.dtype not in (*FLOATS, BOOL)
        or bias.rank > 4
        or broadcast(bias.shape, expected) != expected
        or _is_longer(bias, scores)
    ):
        raise UnsupportedNodeError(
            Code.RANK, f"attention with mask {bias.name!r} {bias.type} over scores {list(scores)}"
        )


def _is_longer(bias: Operand, scores: Shape) -> bool:
    """Whether a mask has more keys than there are."""
    return bool(bias.rank) and bool(bias.shape[-1] > scores[3])
