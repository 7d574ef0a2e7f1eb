"""A decoder's step as one model that needs nothing from the host between two tokens.

The decoder is what onnxruntime-genai's builder writes: its caches go through GroupQueryAttention. Around it come the
attention mask and the positions, calculated from a count of tokens; the choice of the most likely token; and the next
count. Logits are calculated for the last token alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import InputError, ModelError

IDS, LENGTH, NEXT, NEXT_LENGTH, LOGITS = (
    "input_ids",
    "generation.length",
    "generation.next",
    "generation.next_length",
    "generation.logits",
)
"""Inputs and outputs of a step besides its caches: tokens [1, S]; how many tokens there are with these [1, 1]; the most
likely next token behind each of the last ones [choices, 1]; length + 1; logits [1, choices, vocabulary] of the last
ones. `choices` is 1, or at most so many of the tokens as drafts are verified with. A step for batches has rows in place
of each first 1, and one choice for each."""

LOGITS_ROWS = "generation.logits_rows"
"""The same logits inside of a step, [rows, vocabulary]."""

NOTHING = -1
"""In place of a token, where logits leave none to choose."""

MASK, POSITIONS, GIVEN_LOGITS = "attention_mask", "position_ids", "logits"
SHARES, _DOMAIN, PASTS = "GroupQueryAttention", "com.microsoft", (3, 4)
"""The op whose caches are past and present at once, of which domain, and where it reads them."""

_PRODUCTS = ("MatMul", "MatMulNBits")


@dataclass(frozen=True)
class Step:
    """model: the step. caches: name of the past -> (name of the present, shape, numpy type). ids: numpy type of
    tokens."""

    model: onnx.ModelProto
    caches: dict[str, tuple[str, tuple[int, ...], np.dtype[np.generic]]]
    ids: np.dtype[np.generic]


def step_of(model: onnx.ModelProto, rows: int, choices: int = 1, in_batches: bool = False) -> Step:
    """The step of a decoder for one sequence of at most `rows` tokens, or for any number of them. The model given is
    changed. choices: for so many of the last tokens, or for all where there are fewer, it tells the next one.
    in_batches: for any number of sequences.

    Raises:
        ModelError: the model is not such a decoder; what is missing is named.
    """
    graph = model.graph
    inputs, outputs = {i.name: i for i in graph.input}, {o.name for o in graph.output}
    initializers = {t.name: t for t in graph.initializer}
    attention = [n for n in graph.node if n.op_type == SHARES and n.domain == _DOMAIN]
    pasts = {n.input[at]: (n, n.output[at - 2]) for n in attention for at in PASTS if len(n.input) > at and n.input[at]}
    others = [n for n in inputs if n not in (IDS, MASK, POSITIONS, *pasts, *initializers)]
    problem = (
        f"no input {IDS!r}"
        if IDS not in inputs
        else f"no output {GIVEN_LOGITS!r}"
        if GIVEN_LOGITS not in outputs
        else f"neither inputs 'past_key_values.*' nor {SHARES} with a past and a present"
        if not pasts or not set(pasts) <= set(inputs)
        else f"inputs that a generation does not know: {', '.join(map(repr, others))}"
        if others
        else ""
    )
    if problem:
        raise ModelError(
            f"generate: the model has {problem}. Expected a decoder as onnxruntime-genai's model builder writes it: "
            f"{IDS}, {MASK}, "
            f"perhaps {POSITIONS}, caches that only {SHARES} reads, {GIVEN_LOGITS}. Run other models' steps with "
            f"InferenceSession."
        )
    for name in (IDS, *pasts) if in_batches else ():
        first = next(iter(inputs[name].type.tensor_type.shape.dim), None)
        if first is not None and first.HasField("dim_value"):
            raise ModelError(
                f"generate: rows: input {name!r} of the model has a batch of {first.dim_value}, expected an open one; "
                f"export it with a dynamic batch axis, or generate for one prompt at a time"
            )
    caches = dict[str, tuple[str, tuple[int, ...], np.dtype[np.generic]]]()
    for name, (node, present) in pasts.items():
        shape = (1, _attribute(node, "kv_num_heads"), rows, _head(node, inputs[name], graph, initializers))
        caches[name] = (
            present,
            shape,
            np.dtype(helper.tensor_dtype_to_np_dtype(inputs[name].type.tensor_type.elem_type)),
        )
    ids = inputs[IDS].type.tensor_type.elem_type
    _around(graph, inputs, rows, choice(model, choices))
    _give(graph, caches, ids, choices, "rows" if in_batches else 1)
    return Step(model, caches, np.dtype(helper.tensor_dtype_to_np_dtype(ids)))


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next(int(a.i) for a in node.attribute if a.name == name)


def _head(
    node: onnx.NodeProto,
    past: onnx.ValueInfoProto,
    graph: onnx.GraphProto,
    initializers: dict[str, onnx.TensorProto],
) -> int:
    """Elements of a head of the cache: the builder may leave them open, then the queries tell, or the product that
    gives them.

    Raises ModelError where that does not, either.
    """
    dims = past.type.tensor_type.shape.dim
    if len(dims) == 4 and dims[3].dim_value > 0:
        return int(dims[3].dim_value)
    heads = _attribute(node, "num_heads")
    shares = heads if len(node.input) > 1 and node.input[1] else heads + 2 * _attribute(node, "kv_num_heads")
    source = next((n for n in graph.node if node.input[0] in n.output), None)
    shape = next((v.type.tensor_type.shape.dim for v in graph.value_info if v.name == node.input[0]), ())
    width = shape[-1].dim_value if shape else 0
    if not width and source is not None and source.op_type == "MatMulNBits":
        width = _attribute(source, "N")
    elif not width and source is not None and source.op_type == "MatMul" and source.input[1] in initializers:
        width = initializers[source.input[1]].dims[-1]
    if not width or width % shares:
        raise ModelError(
            f"generate: input {past.name!r} leaves the size of a head open, and {node.name!r} does not tell it "
            f"either. Write it into the "
            "model's input shape."
        )
    return int(width) // shares


def _constant(graph: onnx.GraphProto, name: str, value: object, dtype: Any = np.int64) -> str:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), f"generation.{name}"))
    return f"generation.{name}"


def _around(
    graph: onnx.GraphProto, inputs: dict[str, onnx.ValueInfoProto], rows: int, chosen: Sequence[onnx.NodeProto]
) -> None:
    """What comes before the decoder (mask, positions) and behind it (the choice of tokens, the next count)."""
    before = list[onnx.NodeProto]()
    places = _constant(graph, "places", np.arange(rows)[None])
    if MASK in inputs:
        kind = inputs[MASK].type.tensor_type.elem_type
        before += [
            helper.make_node("Less", [places, LENGTH], ["generation.seen"]),
            helper.make_node("Cast", ["generation.seen"], [MASK], to=kind),
        ]
    if POSITIONS in inputs:
        kind = inputs[POSITIONS].type.tensor_type.elem_type
        axis = _constant(graph, "axis", [1])
        before += [
            helper.make_node("Shape", [IDS], ["generation.count"], start=1, end=2),
            helper.make_node(
                "Slice", [places, _constant(graph, "zero", [0]), "generation.count", axis], ["generation.first"]
            ),
            helper.make_node("Sub", [LENGTH, "generation.count"], ["generation.before"]),
            helper.make_node("Add", ["generation.first", "generation.before"], ["generation.positions"]),
            helper.make_node("Cast", ["generation.positions"], [POSITIONS], to=kind),
        ]
    behind = [*chosen, helper.make_node("Add", [LENGTH, _constant(graph, "one", [1])], [NEXT_LENGTH])]
    nodes = [*before, *graph.node, *behind]
    del graph.node[:]
    graph.node.extend(nodes)


def choice(model: onnx.ModelProto, choices: int = 1) -> Sequence[onnx.NodeProto]:
    """Nodes that give LOGITS of the last tokens, and NEXT: NOTHING where the logit that is chosen is NaN or -inf, so
    that no token is.

    choices: of how many tokens, or of all where there are fewer.
    """
    graph, node, many = model.graph, helper.make_node, choices > 1
    kind = next(o for o in graph.output if o.name == GIVEN_LOGITS).type.tensor_type.elem_type
    ids = next(i for i in graph.input if i.name == IDS).type.tensor_type.elem_type
    lowest = _constant(graph, "lowest", -np.inf, helper.tensor_dtype_to_np_dtype(kind))
    by_input = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) >= 18
    axes = [_constant(graph, "columns", [1])] if by_input else []
    attributes: dict[str, Any] = {} if by_input else {"axes": [1]}
    token = NEXT if ids == TensorProto.INT64 else "generation.chosen"
    return [
        *_last_logits(graph, choices),
        *([node("Shape", [LOGITS], ["generation.rows"], start=1)] if many else []),
        node(
            "Reshape",
            [LOGITS, "generation.rows" if many else _constant(graph, "row", [0, -1])],
            [LOGITS_ROWS],
        ),
        node("ArgMax", [LOGITS_ROWS], ["generation.best"], axis=1),
        node("ReduceMax", [LOGITS_ROWS, *axes], ["generation.highest"], **attributes),
        node("Greater", ["generation.highest", lowest], ["generation.is_one"]),
        node("Where", ["generation.is_one", "generation.best", _constant(graph, "nothing", NOTHING)], [token]),
        *([node("Cast", [token], [NEXT], to=ids)] if token != NEXT else []),
    ]


def checked(token: int, behind: int) -> int:
    """A token that was chosen. behind: how many tokens came before it. Raises InputError for NOTHING."""
    if token == NOTHING:
        raise InputError(
            f"generate: no token can be chosen behind {behind} tokens: the model's logits have NaN there, or are "
            f"all -inf. Look at the "
            "prompt's tokens, and try precision=float32, or a model of float32"
        )
    return token


def has_nan(logits: Any) -> bool:
    """Whether logits in host memory, an OrtValue, have NaN: onnxruntime's ArgMax and TopK may not see it, those of a
    device do."""
    return logits.device_name() == "cpu" and bool(np.isnan(logits.numpy()).any())


def _last_logits(graph: onnx.GraphProto, choices: int) -> Sequence[onnx.NodeProto]:
    """Makes LOGITS those of the last tokens: where a product with a weight gives them, it is made for these alone."""
    last = [
        _constant(graph, "last", [-choices]),
        _constant(graph, "end", [np.iinfo(np.int64).max]),
        _constant(graph, "tokens", [1]),
    ]
    at, product = next((k, n) for k, n in enumerate(graph.node) if GIVEN_LOGITS in n.output)
    if product.op_type not in _PRODUCTS:
        return [helper.make_node("Slice", [GIVEN_LOGITS, *last], [LOGITS])]
    cut = helper.make_node("Slice", [product.input[0], *last], ["generation.last_state"])
    product.input[0], product.output[0] = "generation.last_state", LOGITS
    graph.node.insert(at, cut)
    return []


def _give(
    graph: onnx.GraphProto,
    caches: dict[str, tuple[str, tuple[int, ...], np.dtype[np.generic]]],
    ids: int,
    choices: int,
    rows: int | str,
) -> None:
    """The step's inputs and outputs. Sizes of the caches are the model's. rows: sequences."""
    chosen, of_row = (rows, 1) if choices == 1 else ("choices", "choices")
    logits = next(o for o in graph.output if o.name == GIVEN_LOGITS).type.tensor_type
    vocabulary = logits.shape.dim[-1].dim_value or "vocabulary"
    kinds = {name: helper.np_dtype_to_tensor_dtype(dtype) for name, (_, _, dtype) in caches.items()}
    info = helper.make_tensor_value_info
    del graph.input[:], graph.output[:], graph.value_info[:]
    graph.input.extend(
        [
            info(IDS, ids, [rows, "sequence"]),
            info(LENGTH, TensorProto.INT64, [rows, 1]),
            *(info(name, kinds[name], [rows, *shape[1:]]) for name, (_, shape, _) in caches.items()),
        ]
    )
    graph.output.extend(
        [
            info(NEXT, ids, [chosen, 1]),
            info(NEXT_LENGTH, TensorProto.INT64, [rows, 1]),
            info(LOGITS, logits.elem_type, [rows, of_row, vocabulary]),
            *(info(present, kinds[name], [rows, *shape[1:]]) for name, (present, shape, _) in caches.items()),
        ]
    )
