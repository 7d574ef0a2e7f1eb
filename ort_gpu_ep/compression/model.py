"""Compresses a model: chooses a method for each layer, writes the file, and reports the result."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ort_gpu_ep.compression.constants import brought_out, inlined, left_alone
from ort_gpu_ep.compression.folding import without_batch_normalization
from ort_gpu_ep.compression.layers import (
    MIN_WEIGHTS,
    WEIGHT_INPUTS,
    Array,
    Layer,
    check_uncompressed,
    find_layers,
    names_in,
)
from ort_gpu_ep.compression.methods import Encoded, Method, apart, encode, fitting, parse_method
from ort_gpu_ep.compression.prune import by_magnitude, by_samples
from ort_gpu_ep.compression.reading import read_by
from ort_gpu_ep.compression.report import FITTED, HELD, RANDOM, LayerReport, Report
from ort_gpu_ep.compression.samples import Comparison, Samples, compared, load_samples, random_samples, session_of
from ort_gpu_ep.compression.static import quantized
from ort_gpu_ep.errors import ConfigError, ModelError
from ort_gpu_ep.ir import external
from ort_gpu_ep.weights.functions import DOMAIN, MIN_OPSET, VERSION, functions

CONVERTED_TO = 17
"""The opset that models older than functions.MIN_OPSET get."""

WORTH_TELLING = 0.01
"""Of a model's bytes: constants that nobody compresses are told about where they are more."""

Tell = Callable[[str, float], None]


def compress(
    model: str | Path,
    out: str | Path,
    method: str,
    *,
    calibrate: str | Path | Mapping[str, Array] | None = None,
    labels: str | Path | Array | None = None,
    layers: Sequence[tuple[str, str]] = (),
    max_error: float | None = None,
    tell: Tell = lambda text, part: None,
) -> Report:
    """Writes a model with smaller weights to `out`: plain ONNX, that ONNX Runtime's CPU runs with the same result.

    method: of methods.KNOWN. calibrate: samples for each input, a .npz file or arrays; a fourth of them is held out
    from fitting, to compare outputs on. labels: the class of each sample, a .npy file or an array, for the accuracy
    before and after. layers: (pattern of a layer's or weight's name, method), the first that matches counts. max_error:
    a layer whose error (of its outputs where samples tell it, else of its weight) is larger takes the next gentler
    method. tell: is told what comes next and the part that is done. Nothing is written where it fails. Raises
    ConfigError, ModelError.
    """
    source, target = Path(model), Path(out)
    default, patterns = parse_method(method), [(pattern, parse_method(text)) for pattern, text in layers]
    if labels is not None and calibrate is None:
        raise ConfigError("labels need samples: --calibrate DATA.npz with as many samples as there are labels")
    if target.exists():
        raise ModelError(f"{target} exists: give another path, or remove it")
    if not target.parent.is_dir():
        raise ModelError(f"{target.parent} is no folder to write into")
    tell("reading", 0.0)
    original = _read(source)
    before = session_of(original)
    samples = load_samples(calibrate, before, labels) if calibrate is not None else None
    feeds = samples.fit if samples is not None else None
    loaded = _prepared(original, source)
    candidates = find_layers(loaded)
    left, left_nbytes = left_alone(loaded, {layer.weight for layer in candidates})
    if not candidates:
        raise ModelError(
            f"{source}: nothing to compress; expected float32 constants of {MIN_WEIGHTS:,} elements and more in "
            f"{', '.join(WEIGHT_INPUTS)}; there are {left or 'no constants as large'}"
        )
    notes = [f"left as they are: {left}"] if left_nbytes > WORTH_TELLING * loaded.ByteSize() else []
    if default.kind == "int8" and feeds is not None:
        if patterns or max_error is not None:
            raise ConfigError(
                "int8 with calibration data quantizes the whole model: --layers and --max-error don't go with it"
            )
        tell("quantizing activations and weights", 0.1)
        folded = without_batch_normalization(loaded)
        result, reports = quantized(folded, find_layers(folded), feeds)
        result, reports = _the_rest(result, reports)
    else:
        chosen = _chosen(candidates, default, patterns)
        result, reports = _by_layers(loaded, chosen, feeds, max_error, notes, tell)
    tell("comparing outputs", 0.95)
    comparison, on = _compared(before, session_of(result), samples, original, notes)
    data = result.SerializeToString()
    _write(target, data)
    tell("done", 1.0)
    return Report(
        tuple(reports), (max(source.stat().st_size, int(original.ByteSize())), len(data)), comparison, on, tuple(notes)
    )


def _read(path: Path) -> onnx.ModelProto:
    """The model as it is in the file, with its external data. Raises ModelError."""
    if not path.is_file():
        raise ModelError(f"{path} is no file")
    model = external.load(path)
    # of the whole model protobuf doesn't say it where it is larger
    nbytes = sum(i.ByteSize() for i in model.graph.initializer)
    if nbytes >= external.MAX_NBYTES or model.ByteSize() >= external.MAX_NBYTES:
        raise ModelError(f"{path} has {nbytes:,} B with its weights; up to {external.MAX_NBYTES:,} B are taken")
    check_uncompressed(model)
    return model


def _prepared(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with weights where products read them, and of an opset that local functions can be written in. Raises
    ModelError."""
    prepared = inlined(model)
    if _opset(prepared) < MIN_OPSET:
        try:
            prepared = onnx.version_converter.convert_version(prepared, CONVERTED_TO)
        except Exception as error:
            raise ModelError(
                f"{path} is of opset {_opset(prepared)}; {MIN_OPSET} is needed, and onnx can't convert it: {error}"
            ) from error
    prepared = brought_out(prepared)
    prepared.ir_version = max(prepared.ir_version, 8)  # the first with local functions
    return prepared


def _the_rest(model: onnx.ModelProto, reports: Sequence[LayerReport]) -> tuple[onnx.ModelProto, list[LayerReport]]:
    """Weights that the quantizer of activations left (recurrent layers'), as int8 alone."""
    settled = {layer.weight: (layer, *_settled(layer, Method("int8"), None, None)) for layer in find_layers(model)}
    encoded = [(layer, result) for layer, result, method, _ in settled.values() if method.kind != "float32"]
    remaining = [report for *_, report in settled.values()]
    done = [report for report in reports if report.method != "float32"]
    return (assembled(model, encoded) if encoded else model), [*done, *remaining]


def _compared(
    before: Any,
    after: Any,
    samples: Samples | None,
    model: onnx.ModelProto,
    notes: list[str],
) -> tuple[Comparison | None, str]:
    """On the samples that were held out, on those there are, or on random inputs, and which; None where the model runs
    on none."""
    if samples is not None:
        if not samples.held_out:
            notes.append(
                "too few samples to hold some out: outputs were compared on those that the weights were fitted to"
            )
        return compared(before, after, samples.held, samples.labels), HELD if samples.held_out else FITTED
    try:
        feeds = random_samples(before, model)
    except ModelError as error:
        notes.append(f"outputs were not compared: {str(error).partition('; give')[0]}; --calibrate gives samples")
        return None, RANDOM
    notes.append(
        "warning: outputs were compared on random inputs, which says nothing of accuracy. Give samples (--calibrate "
        "DATA.npz, an "
        "array for each input) and their classes (--labels LABELS.npy)"
    )
    return compared(before, after, feeds), RANDOM


def _opset(model: onnx.ModelProto) -> int:
    return next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)


def _chosen(
    found: Sequence[Layer], wanted: Method, patterns: Sequence[tuple[str, Method]]
) -> list[tuple[Layer, Method]]:
    """The method of each layer. Raises ConfigError for a pattern that fits none."""
    for pattern, _ in patterns:
        if not any(_fits(layer, pattern) for layer in found):
            raise ConfigError(
                f"--layers {pattern}: fits no layer; there are {', '.join(layer.name for layer in found)}"
            )
    return [(layer, next((m for pattern, m in patterns if _fits(layer, pattern)), wanted)) for layer in found]


def _fits(layer: Layer, pattern: str) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for name in (layer.name, layer.weight))


def _by_layers(
    model: onnx.ModelProto,
    chosen: Sequence[tuple[Layer, Method]],
    feeds: Sequence[Mapping[str, Array]] | None,
    max_error: float | None,
    notes: list[str],
    tell: Tell,
) -> tuple[onnx.ModelProto, list[LayerReport]]:
    """Each layer by its method, or a gentler one."""
    pruned = [layer.name for layer, method in chosen if fitting(layer, method).kind == "prune"] if feeds is None else []
    if pruned:
        notes.append(
            f"pruned by magnitude alone, which costs accuracy: {', '.join(pruned)}"
            "; --calibrate lets the weights that are left make up for it"
        )
    total, done = sum(layer.array.size for layer, _ in chosen), 0
    encoded: list[tuple[Layer, Encoded]] = []
    reports: list[LayerReport] = []
    now = onnx.ModelProto()  # with the weights that the layers before have become
    now.CopyFrom(model)
    for layer, method in chosen:
        tell(f"{layer.name}: {method}", 0.1 + 0.8 * done / total)
        samples = None
        if feeds is not None and (fitting(layer, method).kind == "prune" or layer.is_matrix):
            before = read_by(model, layer, feeds)
            samples = (read_by(now, layer, feeds) if method.kind == "prune" and encoded else before), before
        result, taken, report = _settled(layer, method, samples, max_error)
        done += layer.array.size
        reports.append(report)
        if taken.kind != "float32":
            encoded.append((layer, result))
            initializer = next(i for i in now.graph.initializer if i.name == layer.weight)
            initializer.CopyFrom(numpy_helper.from_array(result.weight, layer.weight))
    if not encoded:
        raise ModelError(
            "nothing to compress: every layer would keep its float weights, by its method, because of --max-error, or "
            "because they would not get smaller"
        )
    return assembled(model, encoded), reports


def _settled(
    layer: Layer,
    asked: Method,
    samples: tuple[Array, Array] | None,
    max_error: float | None,
) -> tuple[Encoded, Method, LayerReport]:
    """The gentlest change that is asked for within the error that is allowed. samples: what the layer reads now, and
    what it read."""
    method = fitting(layer, asked)
    while True:
        coded = encode(layer, method, _pruned(layer, method, samples) if method.kind == "prune" else None)
        if coded.nbytes >= layer.array.nbytes:  # rows of few elements: their scales would take more than they save
            method = Method("float32")
            coded = encode(layer, method)
        weight_error = _relative(coded.weight, layer.array)
        output_error = (
            _relative(_products(layer, coded.weight, samples[0]), _products(layer, layer.array, samples[1]))
            if samples
            else None
        )
        gentler = method.gentler()
        error = weight_error if output_error is None else output_error
        if max_error is None or error <= max_error or gentler is None:
            density = float(np.count_nonzero(coded.weight)) / coded.weight.size
            shown = "int8" if method.kind == "int4" and not coded.instead else str(method)
            report = LayerReport(
                layer.name,
                layer.node.op_type,
                str(asked),
                shown,
                layer.array.nbytes,
                coded.nbytes,
                density,
                weight_error,
                output_error,
            )
            return coded, method, report
        method = gentler


def _pruned(layer: Layer, method: Method, samples: tuple[Array, Array] | None) -> Array:
    """The layer's rows with zeros among them."""
    if samples is None:
        return by_magnitude(layer.rows(), method.percent)
    blocks = zip(layer.rows().reshape(layer.blocks), *samples, strict=True)
    return np.concatenate([by_samples(rows, method.percent, now, before) for rows, now, before in blocks]).reshape(
        layer.rows().shape
    )


def _products(layer: Layer, weight: Array, samples: Array) -> Array:
    """Of a weight of the layer and what its blocks read."""
    products: Array = samples @ replace(layer, array=weight).rows().reshape(layer.blocks).swapaxes(1, 2)
    return products


def _relative(got: Array, wanted: Array) -> float:
    scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-30)  # squares of large weights are beyond float32
    return float(np.linalg.norm((got - wanted) / scale) / max(float(np.linalg.norm(wanted / scale)), 1e-30))


def assembled(model: onnx.ModelProto, encoded: Sequence[tuple[Layer, Encoded]]) -> onnx.ModelProto:
    """The model with packed constants and their decoders in place of float weights."""
    assembly = onnx.ModelProto()
    assembly.CopyFrom(model)
    taken = names_in(model.graph)
    encoded = [(layer, apart(layer, result, taken)) for layer, result in encoded]
    gone = {layer.weight for layer, _ in encoded}
    instead = {layer.node.output[0]: result.nodes for layer, result in encoded if result.instead}
    nodes = [node for _, result in encoded if not result.instead for node in result.nodes]
    for node in model.graph.node:
        nodes.extend(instead.get(node.output[0], (node,)) if node.output else (node,))
    initializers = [numpy_helper.from_array(a, name) for _, result in encoded for name, a in result.held.items()]
    for name, more in (("initializer", initializers), ("input", []), ("value_info", [])):
        kept = [item for item in getattr(model.graph, name) if item.name not in gone]
        assembly.graph.ClearField(name)
        getattr(assembly.graph, name).extend([*kept, *more])
    assembly.graph.ClearField("node")
    assembly.graph.node.extend(nodes)
    used = [name for _, result in encoded for name in result.functions]
    assembly.functions.extend(functions(used, _opset(assembly)))
    domains = {o.domain for o in assembly.opset_import}
    for domain, version in ((DOMAIN, VERSION), ("com.microsoft", 1)):
        if domain not in domains and any(n.domain == domain for n in nodes):
            assembly.opset_import.append(helper.make_opsetid(domain, version))
    return assembly


def _write(target: Path, data: bytes) -> None:
    """All of the file or nothing. Raises ModelError."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        if target.exists():  # another process was faster
            raise ModelError(f"{target} exists by now: something else has written it")
        Path(name).rename(target)
        name = ""
    except OSError as error:
        raise ModelError(f"{target} ({len(data):,} B) can't be written: {error.strerror or error}") from error
    finally:
        if name:
            Path(name).unlink(missing_ok=True)
