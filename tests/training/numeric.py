"""Gradients by central differences in float64, with ONNX's reference implementation: what the rules are compared
with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ort_gpu_ep.training.differentiate import differentiate
from ort_gpu_ep.training.writer import Value, Writer

PLACES = 24
"""Elements of an input that are moved, at most."""


@dataclass(frozen=True)
class Case:
    """A node to differentiate. inputs: arrays by name, "" left out; of float ones the gradient is checked unless they
    are `fixed`.

    width: by how much elements are moved; more for ops whose reference computes in float32. reference: nodes that
    compute the same, where the reference implementation has no such form; they end in the node's outputs.
    """

    op: str
    inputs: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    outputs: int = 1
    opset: int = 17
    used: tuple[int, ...] = (0,)
    reference: tuple[onnx.NodeProto, ...] = ()
    name: str = ""
    width: float = 1e-5

    @property
    def id(self) -> str:
        return f"{self.op}-{self.name}" if self.name else self.op

    def node(self) -> onnx.NodeProto:
        names = [n if a is not None else "" for n, a in self.inputs.items()]
        return helper.make_node(self.op, names, [f"y{k}" for k in range(self.outputs)], name="it", **self.attributes)

    def arrays(self) -> dict[str, np.ndarray]:
        return {n: np.asarray(a) for n, a in self.inputs.items() if a is not None}

    def tracked(self) -> list[str]:
        return [n for n, a in self.arrays().items() if a.dtype == np.float32 and n not in self.fixed]


def gradient_model(
    case: Case, seeds: Mapping[str, np.ndarray] | None = None
) -> tuple[onnx.ModelProto, list[str], dict[str, np.ndarray]]:
    """The model that gives the gradients of all tracked inputs; their names; the seeds (drawn where none are given)
    among its inputs."""
    writer = Writer(case.opset, 8)
    tracked = case.tracked()
    for name, array in case.arrays().items():
        if name in tracked:
            writer.input(name, array.dtype, array.shape, tracked=True)
        else:
            writer.constant(array, name)
    writer.add(case.node())
    rng = np.random.default_rng(5)
    drawn = {f"d{k}": rng.normal(size=writer.values[f"y{k}"].shape).astype("f") for k in case.used}
    given: dict[str, Value] = {f"y{k}": writer.input(f"d{k}", "float32", drawn[f"d{k}"].shape) for k in case.used}
    found = differentiate(writer, list(writer.nodes), given)
    named = [writer.named(found[name], f"grad.{name}") for name in tracked]
    return writer.model("gradients", named), tracked, drawn


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """On onnxruntime's CPU. Feeds that the model does not read are left out."""
    onnx.checker.check_model(model, full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


def forward(case: Case) -> ReferenceEvaluator:
    """The node in the reference implementation, which computes in the type of its inputs."""
    nodes: Sequence[onnx.NodeProto] = case.reference or (case.node(),)
    infos = [onnx.ValueInfoProto(name=n) for n in case.arrays()]
    outputs = [onnx.ValueInfoProto(name=f"y{k}") for k in range(case.outputs)]
    graph = helper.make_graph(list(nodes), "forward", infos, outputs)
    return ReferenceEvaluator(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=8)
    )


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def differences(case: Case, name: str, seeds: Mapping[str, np.ndarray], places: Sequence[int]) -> np.ndarray:
    """Of the sum of each output times its seed, by an input's elements at flat places."""
    evaluator, arrays = forward(case), {n: wide(a) for n, a in case.arrays().items()}
    found = []
    for place in places:
        sums = []
        for sign in (1, -1):
            moved = arrays[name].copy()
            moved.reshape(-1)[place] += sign * case.width
            outputs: Any = evaluator.run(None, {**arrays, name: moved})
            sums.append(sum(float((np.asarray(outputs[k], np.float64) * seeds[f"d{k}"]).sum()) for k in case.used))
        found.append((sums[0] - sums[1]) / (2 * case.width))
    return np.array(found)


def check(case: Case, tolerance: float = 2e-4) -> None:
    """Compares each gradient with differences, relative to the largest."""
    model, tracked, seeds = gradient_model(case)
    got = dict(zip(tracked, run(model, {**case.arrays(), **seeds}), strict=True))
    rng = np.random.default_rng(6)
    for name in tracked:
        flat = got[name].reshape(-1)
        assert got[name].shape == case.arrays()[name].shape
        places = np.arange(flat.size) if flat.size <= PLACES else rng.choice(flat.size, PLACES, replace=False)
        want = differences(case, name, seeds, places.tolist())
        np.testing.assert_allclose(
            flat[places], want, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(want).max())), err_msg=name
        )
