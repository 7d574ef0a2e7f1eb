"""A planted fault is found: in one kernel, in two, and where it is in the fusion of nodes only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.comparison.bisection import bisect
from ort_gpu_ep.comparison.models import alone, reads_of, save, save_case, up_to
from ort_gpu_ep.kernels import claim, questions
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Lowering, OpSpec
from tests.unit.graphs import model_of

TEXT = """(float[8, 16] x) => (float[8, 12] y) {
    a = Tanh(x)
    b = MatMul(a, w)
    c = Relu(b)
    d = Softmax(c)
    e = MatMul(d, v)
    y = Sigmoid(e)
}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    made = model_of(
        TEXT, {"w": rng.standard_normal((16, 12)).astype("f"), "v": rng.standard_normal((12, 12)).astype("f")}
    )
    for node in made.graph.node:
        node.name = f"the {node.op_type} of {node.output[0]}"
    return made


@pytest.fixture(scope="module")
def feeds() -> dict[str, Any]:
    return {"x": np.random.default_rng(2).standard_normal((8, 16)).astype("f")}


@pytest.fixture(autouse=True)
def alone_with_faults() -> Iterator[None]:
    with questions.apart():
        yield


def gpu(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return list(
        InferenceSession(model.SerializeToString(), provider_options={"placement": "gpu"}).run(None, dict(feeds))
    )


def cpu(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return list(
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, dict(feeds)
        )
    )


def scaled(spec: OpSpec, factor: float, only: tuple[int, ...] = ()) -> OpSpec:
    """The row of MatMul with products that are too large. only: shape of its first input."""

    def build(node: BoundNode) -> Any:
        built = spec.build(node)
        if only and node.input(0).shape != only:
            return built
        assert isinstance(built, Lowering)
        kernels = tuple(
            replace(k, consts=tuple((n, factor if n == "ALPHA" else v) for n, v in k.consts)) for k in built.kernels
        )
        assert kernels != built.kernels
        return replace(built, kernels=kernels)

    return replace(spec, build=build)


def test_without_a_fault(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    told: list[float] = []
    found = bisect(model, feeds, gpu, cpu, progress=lambda what, part: told.append(part))
    assert found.within
    assert found.first is None
    assert found.worst is not None
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_the_first_node_and_a_model_that_shows_it(
    model: onnx.ModelProto,
    feeds: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(OPS, ("", "MatMul"), scaled(OPS["", "MatMul"], 1.5))
    found = bisect(model, feeds, gpu, cpu)
    assert not found.within
    assert not found.fused
    assert found.first is not None
    assert found.first.name == "the MatMul of b"
    assert found.first.nodes == 1
    assert found.first.own is not None
    assert found.first.own.relative == pytest.approx(0.5, rel=1e-3)
    assert found.worst is not None
    assert found.worst.op == "MatMul"
    assert found.first.model is not None
    assert found.first.feeds is not None
    given = save_case(found.first.model, found.first.feeds, tmp_path)
    shown = onnx.load(tmp_path / "model.onnx")
    assert [n.op_type for n in shown.graph.node] == ["MatMul"]
    assert [i.name for i in shown.graph.initializer] == ["w"]
    values = {name: np.load(path) for name, path in (pair.split("=") for pair in given)}
    np.testing.assert_allclose(gpu(shown, values)[0], 1.5 * cpu(shown, values)[0], rtol=1e-4, atol=1e-4)


def test_the_worst_is_not_the_first(
    model: onnx.ModelProto, feeds: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slight = scaled(OPS["", "MatMul"], 1.001, (8, 16))
    monkeypatch.setitem(OPS, ("", "MatMul"), scaled(slight, 3.0, (8, 12)))
    found = bisect(model, feeds, gpu, cpu)
    assert found.first is not None
    assert found.worst is not None
    assert (found.first.name, found.worst.name) == ("the MatMul of b", "the MatMul of e")
    loose = bisect(model, feeds, gpu, cpu, tolerance=0.1)
    assert loose.first is not None
    assert loose.first.name == "the MatMul of e"


def test_a_fault_of_fused_nodes(model: onnx.ModelProto, feeds: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every value is looked at, nothing is fused, and nothing is wrong."""
    usual = claim._with_epilogue

    def without_steps(bound: BoundNode, kernels: Any, outputs: Any) -> Any:
        made, types = usual(bound, kernels, outputs)
        return (tuple(replace(k, epilogue=()) for k in made) if bound.op == "MatMul" else made), types

    monkeypatch.setattr(claim, "_with_epilogue", without_steps)
    found = bisect(model, feeds, gpu, cpu)
    assert not found.within
    assert found.fused
    assert found.first is not None
    assert found.first.name == "the Relu of c"
    assert found.first.nodes == 2
    assert found.first.own is not None
    assert not found.first.own.within()


def test_parts_of_a_model(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    part = up_to(model, ["c"])
    assert [n.op_type for n in part.graph.node] == ["Tanh", "MatMul", "Relu"]
    assert [i.name for i in part.graph.initializer] == ["w"]
    assert cpu(part, feeds)[0].shape == (8, 12)
    with pytest.raises(KeyError):
        alone(model, [model.graph.node[3]], {})


def test_what_a_body_reads_from_outside() -> None:
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 16]>
        g (bool q, float[2] x, float[2] z) => (float[2] y) {
            y = If(q) <then_branch = t () => (float[2] r) { r = Add(x, z) }, else_branch = e () => (float[2] s) { u = Neg(x) s = Abs(u) }>
        }""")
    assert reads_of(made.graph.node[0]) == {"q", "x", "z"}


def test_large_models_are_saved_beside_their_weights(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gpu_ep.comparison import models

    monkeypatch.setattr(models, "EXTERNAL_NBYTES", 1)
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    save(copied, tmp_path / "a" / "m.onnx")
    assert len(onnx.load(tmp_path / "a" / "m.onnx").graph.initializer) == 2
