"""ort-gpu-ep inspect: what is in a model file, without a GPU and without opening the model."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import ort_gpu_ep.ops  # noqa: F401  fills the table of kernels
from ort_gpu_ep.cli import shared
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.inputs.guess import declared, inputs_of
from ort_gpu_ep.ir import external
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.refused import kind_of
from ort_gpu_ep.ir.schemas import schema, told
from ort_gpu_ep.kernels.host import is_shape_only
from ort_gpu_ep.kernels.registry import KNOWN_OPSET, spec_of

if TYPE_CHECKING:
    import onnx

_BODIES = ("If", "Loop", "Scan")


@shared.reports_errors
def inspect(model: shared.ModelArgument, json: shared.JsonOption = False) -> None:
    """Show MODEL's inputs, outputs, opset, size, external files, and its ops with those that have kernels. Needs no
    GPU."""
    shared.check_file(model)
    facts = _facts(model, _read(model))
    if json:
        shared.print_json(facts)
    else:
        _print(facts)


def _read(path: Path) -> onnx.ModelProto:
    """Without its external data. Raises ModelError."""
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
        if model.HasField("graph"):
            return model
        error: object = "it has no graph"
    except Exception as reason:  # protobuf's own
        error = reason
    raise ModelError(f"{path}: not an ONNX model that can be read ({kind_of(path) or error})")


def _facts(path: Path, model: onnx.ModelProto) -> dict[str, Any]:
    """For JSON and tables."""
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    functions = {(function.domain, function.name) for function in model.functions}
    counts = Counter(
        ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        for node in _nodes([model.graph, *model.functions])
    )
    ops = [
        {"op": f"{domain}:{op}" if domain else op, "nodes": count, "kernel": _kernel(domain, op, opsets, functions)}
        for (domain, op), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    weights = [(math.prod(tensor.dims), tensor.data_type) for tensor in model.graph.initializer]
    return {
        "model": str(path),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "ir_version": model.ir_version,
        "opsets": opsets,
        "inputs": [value._asdict() for value in inputs_of(model) or ()],
        "outputs": [value._asdict() for value in declared(model.graph.output)],
        "nbytes": os.path.getsize(path),
        "external": [_file(path, location) for location in external.locations_in(model)],
        "parameters": sum(count for count, _ in weights),
        "parameters_by_type": dict(_by_type(weights)),
        "ops": ops,
    }


def _nodes(graphs: Any) -> Iterator[onnx.NodeProto]:
    """Of graphs, functions, and the bodies inside them."""
    for graph in graphs:
        for node in graph.node:
            yield node
            yield from _nodes(
                [a.g for a in node.attribute if a.HasField("g")] + [body for a in node.attribute for body in a.graphs]
            )


def _kernel(domain: str, op: str, opsets: dict[str, int], functions: set[tuple[str, str]]) -> str:
    """Whether an op of this model has a kernel, or why not; whether a node is taken also depends on its types, sizes
    and attributes."""
    if (domain, op) in functions:
        return "inlined: a function of the model"
    if not domain and op in _BODIES:
        return "its bodies' nodes, each"
    opset = opsets.get(domain or "ai.onnx", 0)
    form = schema(domain, op, opset)
    node = Node(op, (), (), domain=domain, version=form.since_version if form is not None else opset)
    spec = spec_of(node)
    if is_shape_only(node) or (not domain and op == "Constant"):
        return "computed on the host"
    if spec is None:
        return "none"
    if node.version < spec.since or told(node, (), KNOWN_OPSET).newer:
        return f"none for opset {opset}, but from {spec.since} to {KNOWN_OPSET}"
    return "yes"


def _file(path: Path, location: str) -> dict[str, Any]:
    """A file that the model names, as onnxruntime would find it; `nbytes` None and `why` where it is not there, or
    refused."""
    try:
        return {
            "location": location,
            "nbytes": os.path.getsize(external.path_of(location, str(path.absolute().parent), str(path))),
        }
    except (ModelError, OSError) as error:
        return {"location": location, "nbytes": None, "why": str(error)}


def _by_type(weights: list[tuple[int, int]]) -> Iterator[tuple[str, int]]:
    import onnx

    for data_type in dict.fromkeys(kind for _, kind in weights):
        yield (
            onnx.TensorProto.DataType.Name(data_type).lower(),
            sum(count for count, kind in weights if kind == data_type),
        )


def _print(facts: dict[str, Any]) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
    shared.out.print(
        f"{facts['model']}: {facts['nbytes']:,} B, IR version {facts['ir_version']}, opset {opsets}"
        f"{', written by ' + facts['producer'] if facts['producer'] else ''}"
    )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in facts["parameters_by_type"].items())
    shared.out.print(f"parameters: {facts['parameters']:,}{f' ({kinds})' if kinds else ''}")
    for file in facts["external"]:
        shared.out.print(f"external file {file['location']}: {file.get('why') or format(file['nbytes'], ',') + ' B'}")
    table = Table("", "name", "type", "shape")
    for kind in ("inputs", "outputs"):
        for value in facts[kind]:
            shape = ", ".join("?" if size is None else str(size) for size in value["shape"])
            table.add_row(kind.removesuffix("s"), value["name"], value["type"], f"[{shape}]")
    shared.out.print(table)
    table = Table("op", "nodes", "kernel")
    for row in facts["ops"]:
        table.add_row(row["op"], str(row["nodes"]), row["kernel"])
    shared.out.print(table)
    lacking = sum(row["nodes"] for row in facts["ops"] if row["kernel"].startswith("none"))
    total = sum(row["nodes"] for row in facts["ops"])
    shared.out.print(
        f"{total - lacking} of {total} nodes have an op with a kernel. Whether each is taken, `ort-gpu-ep "
        f"explain` shows."
    )
