"""Guesses inputs for a model: sizes and values that its structure allows. All commands share it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.inputs.feeds import dtype_of

Array = np.ndarray[Any, Any]

BATCH = 1
"""Of the first dimension of an input with several, and of dimensions that have its name."""

LENGTHS = (64, 1, 16, 512, 576, 224, 640, 16000)
"""Tried for other open dimensions, in this order: tokens, states, frames of sound."""

SIDES = (224, 64, 640, 32, 256, 1)
"""Tried for the sides of images."""

CHANNELS = (1, 3, 4)
SAMPLE_RATE = 16000
TRIED = 12
"""Sets of sizes that a model is run on at most."""

_PASSING = {
    "Cast",
    "Identity",
    "Unsqueeze",
    "Squeeze",
    "Reshape",
    "Transpose",
    "Flatten",
    "Slice",
    "Clip",
    "Expand",
    "Concat",
}
"""Ops through which an index reaches the table that it is an index of."""

_ELEMENTWISE = {"DequantizeLinear", "Cast", "Identity", "Add", "Sub", "Mul", "Div"}
"""Ops by which models compute a table from the constants that they store."""

_WORDS = "text"


class NoGuessError(ModelError):
    """Nothing can be made up that a model runs on: its inputs have to be given."""


@dataclass(frozen=True)
class Structure:
    """What a model's graph says of its inputs. rows: of the table that an integer input looks up, by input. lengths:
    products of the shapes that Reshapes ask for: what they need a multiple of.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Guess:
    """feeds: an array for each input. guessed: names of inputs that nobody gave. sizes: of open dimensions, as they
    were guessed, by their symbol, or by input and axis. refused: what the model says of these inputs where it was tried
    on none that it takes; else empty.
    """

    feeds: Mapping[str, Array]
    guessed: tuple[str, ...]
    sizes: Mapping[str, int]
    refused: str = ""

    def line(self, seed: int) -> str:
        """For the user: what was made up, and what changes that. Empty where nothing was."""
        if not self.guessed:
            return ""
        shown = "; ".join(f"{name} {_described(self.feeds[name])}" for name in self.guessed[:8])
        more = f" and {len(self.guessed) - 8} more" if len(self.guessed) > 8 else ""
        named = [name for name in self.sizes if "[" not in name]
        sizes = f" Guessed sizes: {', '.join(f'{n}={s}' for n, s in self.sizes.items())}." if self.sizes else ""
        ways = [
            *([f"--dim {named[0]}=N"] if named else []),
            *([f"--shape {self.guessed[0]}=AxB"] if len(named) < len(self.sizes) else []),
            f"--input {self.guessed[0]}=FILE or NUMBER",
        ]
        return f"random inputs, seed {seed}: {shown}{more}.{sizes} To change: {', '.join(ways)}."


def _read(model: Any) -> Any:
    """A ModelProto without the weights that lie beside it; None for what onnx can't read."""
    import onnx

    try:
        if isinstance(model, (str, os.PathLike)):
            return onnx.load(os.fspath(model), load_external_data=False)
        return onnx.load_from_string(model) if isinstance(model, bytes) else model
    except Exception:  # of protobuf; onnxruntime reads more formats than onnx does
        return None


class Declared(NamedTuple):
    """An input or output as the model's file declares it; what `session.get_inputs()` gives has these attributes,
    too."""

    name: str
    type: str
    shape: list[int | str | None]


def declared(values: Iterable[Any]) -> list[Declared]:
    """values: ValueInfoProtos, of a graph's inputs or outputs."""
    import onnx

    result = []
    for value in values:
        kind, tensor = str(value.type.WhichOneof("value") or ""), value.type.tensor_type
        element = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        shape = [d.dim_param or (d.dim_value if d.HasField("dim_value") else None) for d in tensor.shape.dim]
        result.append(
            Declared(value.name, f"tensor({element})" if kind == "tensor_type" else kind.removesuffix("_type"), shape)
        )
    return result


def inputs_of(model: Any) -> list[Declared] | None:
    """What a run is to be given; None for a model that onnx can't read. model: its path."""
    model = _read(model)
    if model is None:
        return None
    constants = {i.name for i in model.graph.initializer}
    return declared(i for i in model.graph.input if i.name not in constants)


def with_sizes(path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]]) -> bytes | None:
    """The model with inputs of these shapes, external data where it was; None where that is no message (2 GiB), or onnx
    can't read it."""
    model = _read(path)
    if model is None:
        return None
    for value in (i for i in model.graph.input if i.name in shapes):
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=False):
            dim.dim_value = size
    try:
        return bytes(model.SerializeToString())
    except ValueError:
        return None


def structure_of(model: Any) -> Structure:
    """model: a path, bytes or a ModelProto. Of one that onnx can't read, nothing is known."""
    model = _read(model)
    if model is None:
        return Structure()
    shapes = {i.name: tuple(i.dims) for i in model.graph.initializer}
    initializers = {i.name: i for i in model.graph.initializer if not _is_external(i)}
    for node in model.graph.node:
        for value in (a.t for a in node.attribute if node.op_type == "Constant" and a.name == "value"):
            shapes[node.output[0]] = tuple(value.dims)
            initializers.update({node.output[0]: value} if not _is_external(value) else {})
        if node.op_type in _ELEMENTWISE and all(name in shapes for name in node.input[:2]):
            # a scale is smaller than its table
            shapes[node.output[0]] = max((shapes[name] for name in node.input[:2]), key=math.prod)
    return Structure(
        {i.name: rows for i in model.graph.input if (rows := _rows(model.graph.node, shapes, initializers, i.name))},
        tuple(islice(_lengths(model.graph.node, initializers), 4)),
    )


def _is_external(tensor: Any) -> bool:
    """Whether its content lies in another file: large weights do, and none of the small numbers that tell a size."""
    return bool(tensor.data_location == tensor.EXTERNAL)


def _rows(nodes: Sequence[Any], shapes: Mapping[str, tuple[int, ...]], held: Mapping[str, Any], name: str) -> int:
    """Of the smallest table that an input is an index of, or its number of classes; 0 if it is no index."""
    reached, rows = {name}, []
    for node in nodes:
        if node.op_type in ("Gather", "GatherBlockQuantized") and node.input[1] in reached and node.input[0] in shapes:
            key = "axis" if node.op_type == "Gather" else "gather_axis"
            axis = next((a.i for a in node.attribute if a.name == key), 0)
            rows.append(shapes[node.input[0]][axis])
        elif node.op_type in ("OneHot", "Equal") and reached.intersection(node.input):
            rows.extend(_classes(node, held))
        elif node.op_type in _PASSING and reached.intersection(
            node.input[:1] if node.op_type != "Concat" else node.input
        ):
            reached.update(node.output)
    return min(rows, default=0)


def _classes(node: Any, held: Mapping[str, Any]) -> Iterator[int]:
    """How many values a OneHot tells apart, or an Equal that stands for one: it compares with 0, 1, 2, ..."""
    from onnx import numpy_helper

    for constant in (numpy_helper.to_array(held[name]).ravel() for name in node.input[:2] if name in held):
        if node.op_type == "OneHot" and constant.size == 1:
            yield int(constant[0])
        elif constant.size > 1 and constant.dtype.kind in "iuf" and np.array_equal(constant, np.arange(constant.size)):
            yield constant.size


def _lengths(nodes: Sequence[Any], held: Mapping[str, Any]) -> Iterator[int]:
    from onnx import numpy_helper

    for node in nodes:
        if node.op_type == "Reshape" and len(node.input) > 1 and node.input[1] in held:
            size = math.prod(int(d) for d in numpy_helper.to_array(held[node.input[1]]).ravel() if d > 0)
            if 1 < size <= 1 << 20:
                yield size


def guess(
    inputs: Sequence[Any],
    structure: Structure,
    given: Mapping[str, Array] | None = None,
    sizes: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    tries: Callable[[Mapping[str, Array]], object] | None = None,
) -> Guess:
    """inputs: as `session.get_inputs()` gives them. given, sizes, shapes: what the user says, by inputs or symbols.
    tries: runs the model; the first sizes that it does not refuse are taken. Raises NoGuessError for an input that
    nothing can be made up for.
    """
    refused = ""
    first: Guess | None = None
    given, sizes, shapes = given or {}, sizes or {}, shapes or {}
    fixed = {name: tuple(array.shape) for name, array in given.items()} | {
        name: tuple(shape) for name, shape in shapes.items()
    }
    sizes = {**_symbols_of(inputs, fixed), **sizes}
    for lengths in islice(_candidates(structure), TRIED if tries is not None else 1):
        attempt = _made(inputs, structure, given, sizes, fixed, lengths, seed)
        first = first or attempt
        if tries is None or not attempt.guessed:
            return attempt
        try:
            tries(attempt.feeds)
        except Exception as error:  # onnxruntime has a type for each; the first one is told, if no sizes do
            refused = refused or " ".join(str(error).split())
            if not attempt.sizes:
                break
            continue
        return attempt
    assert first is not None
    return Guess(first.feeds, first.guessed, first.sizes, refused)


def _symbols_of(inputs: Sequence[Any], known: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Sizes of symbols that given arrays have."""
    pairs = (
        pair for value in inputs if value.name in known for pair in zip(value.shape, known[value.name], strict=False)
    )
    return {symbol: size for symbol, size in pairs if isinstance(symbol, str)}


def _candidates(structure: Structure) -> Iterator[tuple[int, int]]:
    """(length, side) of each try."""
    lengths = list(dict.fromkeys((*LENGTHS[:1], *structure.lengths, *LENGTHS[1:])))
    for k in range(max(len(lengths), len(SIDES))):
        yield lengths[min(k, len(lengths) - 1)], SIDES[min(k, len(SIDES) - 1)]


def _made(
    inputs: Sequence[Any],
    structure: Structure,
    given: Mapping[str, Array],
    sizes: Mapping[str, int],
    known: Mapping[str, Sequence[int]],
    lengths: tuple[int, int],
    seed: int,
) -> Guess:
    rng, feeds, open_sizes = np.random.default_rng(seed), dict[str, Array](), dict[str, int]()
    batches = {v.shape[0] for v in inputs if len(v.shape) > 1 and isinstance(v.shape[0], str)}
    for value in inputs:
        if value.name in given:
            feeds[value.name] = given[value.name]
            continue
        shape = known.get(value.name)
        if shape is None:
            shape = []
            for axis, dim in enumerate(value.shape):
                if isinstance(dim, int) and dim >= 0:
                    shape.append(dim)
                    continue
                size = (
                    sizes.get(dim, _size(value, axis, dim, batches, lengths))
                    if isinstance(dim, str)
                    else _size(value, axis, dim, batches, lengths)
                )
                shape.append(size)
                if not isinstance(dim, str) or dim not in sizes:
                    open_sizes[dim if isinstance(dim, str) else f"{value.name}[{axis}]"] = size
        feeds[value.name] = _value(value, tuple(shape), structure.rows.get(value.name, 0), rng)
    return Guess(feeds, tuple(v.name for v in inputs if v.name not in given), open_sizes)


def _size(value: Any, axis: int, dim: Any, batches: set[str], lengths: tuple[int, int]) -> int:
    """Of an open dimension, by where it is and what it is called."""
    rank, name = len(value.shape), dim.lower() if isinstance(dim, str) else ""
    if "past" in name and "total" not in name:
        return 0  # a language model's cache is empty at first
    is_state = rank == 3 and axis == 1 and all(isinstance(d, int) and d > 0 for d in (value.shape[0], value.shape[2]))
    # a state's shape: layers, batch, width
    if (axis == 0 and rank > 1) or dim in batches or "batch" in name or is_state:
        return BATCH
    channels_first, channels_last = (rank == 4 and value.shape[k] in CHANNELS for k in (1, 3))
    is_image = channels_first or channels_last or any(word in name for word in ("height", "width"))
    return lengths[1] if is_image else lengths[0]


def _value(value: Any, shape: tuple[int, ...], rows: int, rng: np.random.Generator) -> Array:
    """Normal floats; indices of the table that the input looks up; ones for masks; 0 and 1 for other integers."""
    name, dtype = value.name.lower(), dtype_of(value)
    if value.type == "tensor(string)":
        return np.full(shape, _WORDS, object)
    if dtype is None:
        raise NoGuessError(
            f"input {value.name!r} is a {value.type}: no random values for that; give --input {value.name}=FILE.npy"
        )
    if dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    if not shape and (name in ("sr", "fs") or "sampl" in name):
        return np.asarray(SAMPLE_RATE, dtype)
    if "mask" in name and dtype.kind in "iub":
        return np.ones(shape, dtype)
    if "position" in name and shape and (not rows or shape[-1] <= rows):
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
    return np.asarray(rng.integers(0, rows or 2, shape)).astype(dtype)


def _described(array: Array) -> str:
    """Type, shape, and of integers the range: it says what they were taken for."""
    text = f"{array.dtype if array.dtype != object else 'text'}{list(array.shape)}"
    if array.size and array.dtype.kind in "iu":
        low, high = int(array.min()), int(array.max())
        text += f" = {low}" if low == high else f" of {low} to {high}"
    return text
