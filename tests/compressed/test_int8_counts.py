"""How many bytes of int8 models differ from ONNX Runtime's CPU: none by more than one step, 99.9 % not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from ort_gpu_ep.compression import compress
from tests.compressed.test_compress import RNG, network
from tests.compressed.test_integer_fusion import model_of
from tests.ops.single_node import on_cpu_exactly
from tests.plugin.cases import open_session


def giving_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what its quantizers write as outputs instead of the floats that are read from it."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = [n.output[0] for n in made.graph.node if n.op_type == "QuantizeLinear"]
    del made.graph.output[:]
    made.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    return made


def differing(model: onnx.ModelProto, feeds: Any) -> tuple[int, int, int]:
    """(bytes, those that differ, the largest difference)."""
    opened = open_session(model.SerializeToString())
    pairs = [
        (got.astype("i4"), wanted.astype("i4"))
        for got, wanted in zip(opened.session.run(None, feeds), on_cpu_exactly(model, feeds), strict=True)
    ]
    assert not [e for e in opened.state.events if e.kind in ("fallback", "error", "warning")], opened.state.events
    return (
        sum(a.size for a, _ in pairs),
        sum(int((a != b).sum()) for a, b in pairs),
        max(int(abs(a - b).max(initial=0)) for a, b in pairs),
    )


def test_one_step_and_one_in_a_thousand(tmp_path: Path) -> None:
    found = []
    for op in ("Conv", "MatMul"):
        for relu in (False, True):
            model = giving_bytes(model_of(op, relu, per_channel=True, bias=op == "Conv"))
            found.append(
                differing(model, {"x": RNG.normal(size=(20, 8, 9, 7) if op == "Conv" else (400, 40)).astype("f") * 2})
            )
    onnx.save(network(), tmp_path / "net.onnx")
    compress(
        tmp_path / "net.onnx",
        tmp_path / "int8.onnx",
        "int8",
        calibrate={"x": RNG.normal(size=(16, 3, 12, 12)).astype("f")},
    )
    found.append(
        differing(giving_bytes(onnx.load(tmp_path / "int8.onnx")), {"x": RNG.normal(size=(40, 3, 12, 12)).astype("f")})
    )
    assert all(step <= 1 for _, _, step in found), found
    assert sum(count for count, _, _ in found) > 100_000
    assert 1000 * sum(differ for _, differ, _ in found) <= sum(count for count, _, _ in found), found
