"""Concat in place: whatever makes a part stores it where it belongs, for fixed and open sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import parts, rewrite
from ort_gpu_ep.partitioner.passes import PARTS_PLACED, PASSES, Work, run
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.verify import violations as plan_violations
from tests.direct import run_direct, run_program
from tests.ops.single_node import Array, assert_agree, data, on_cpu
from tests.unit.graphs import graph_of, model_of, plan_of, static_types
from tests.unit.invariants import PROPERTIES, violations

HEAD = "(float[2, 8, 6, 5] x, float[2, 8, 6, 5] z)"

IN_PLACE = {
    "steps and pools": f"{HEAD} => (y) {{ a = Exp(x) b = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(z) y = "
    f"Concat<axis=1>(a, b) }}",
    "one value in two ways": f"{HEAD} => (y) {{ a = Exp(x) b = Neg(x) c = Tanh(z) y = Concat<axis=-1>(a, b, c) }}",
    "parts with fused operands": f"""{HEAD} => (y, s) {{ a = Exp(x) b = Mul(a, scale) c = Add(b, z) d = Relu(z) e = Mul(d, z)
        s = Concat<axis=2>(c, e) y = Neg(s) }}""",
    "convolutions": f"{HEAD} => (y) {{ a = Conv(x, k) b = Conv(z, k) c = Relu(b) g = Concat<axis=1>(a, c) y = "
    f"GlobalMaxPool(g) }}",
    "products": "(float[3, 8] x, float[3, 8] z) => (y) { a = MatMul(x, m) b = MatMul(z, m) y = Concat<axis=1>(a, b) }",
    "moved": f"{HEAD} => (y) {{ a = Transpose<perm=[0,1,3,2]>(x) b = Transpose<perm=[0,1,3,2]>(z) y = "
    f"Concat<axis=0>(a, b) }}",
    "sums and softmax": f"""{HEAD} => (y) {{ a = ReduceMean<axes=[2], keepdims=1>(x) b = Softmax<axis=-1>(z) y = Concat<axis=2>(a, b) }}""",
    "integers": "(int32[3, 4] x, int32[3, 4] z) => (y) { a = Neg(x) b = Abs(z) y = Concat<axis=1>(a, b) }",
}

COPIED = {
    "an input": f"{HEAD} => (y) {{ a = Exp(x) y = Concat<axis=1>(a, z) }}",
    "read elsewhere": f"{HEAD} => (y, w) {{ a = Exp(x) b = Neg(z) y = Concat<axis=1>(a, b) w = "
    f"MaxPool<kernel_shape=[2,2]>(a) }}",
    "an output": f"{HEAD} => (y, a) {{ a = Exp(x) b = Neg(z) y = Concat<axis=1>(a, b) }}",
    "twice the same": f"{HEAD} => (y) {{ a = Exp(x) y = Concat<axis=1>(a, a) }}",
    "bytes": "(uint8[3, 4] x, uint8[3, 4] z) => (y) { a = BitwiseNot(x) b = BitwiseNot(z) y = Concat<axis=1>(a, b) }",
    "a view": f"{HEAD} => (y) {{ a = Reshape(x, as) b = Exp(z) y = Concat<axis=1>(a, b) }}",
    "steps behind it": f"{HEAD} => (y) {{ a = Exp(x) b = Neg(z) c = Concat<axis=1>(a, b) y = Relu(c) }}",
}

HELD: dict[str, Array] = {"k": data(4, 8, 1, 1), "m": data(8, 5), "scale": data(8, 1, 1), "as": np.array([2, 8, 6, 5])}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place wherever it can be: these tests are of how parts are written."""
    monkeypatch.setattr(parts, "WAIT_DISPATCHES", 0.0)


def made(text: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    model = model_of(
        text,
        {n: a for n, a in HELD.items() if f" {n}" in text.split("=>")[1]},
        opset=17 if "BitwiseNot" not in text else 18,
    )
    feeds = {}
    for k, value in enumerate(model.graph.input):
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name
        feeds[value.name] = data(*shape, dtype=kind, seed=k)
    return model, feeds


def shaders(model: onnx.ModelProto) -> list[str]:
    return [s.kernel.shader for s in plan_of(from_onnx(model)).steps if hasattr(s, "kernel")]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    model, feeds = made(IN_PLACE[name])
    assert not [s for s in shaders(model) if s.startswith("concat")]
    for every_size_open in (False, True):
        for got, want in zip(run_direct(model, feeds, rewrite, every_size_open), on_cpu(model, feeds), strict=True):
            assert_agree(got, want, 2e-6)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", COPIED)
def test_what_can_not_be_written_in_place_is_copied(name: str) -> None:
    model, feeds = made(COPIED[name])
    assert [s for s in shaders(model) if s.startswith("concat")]
    for got, want in zip(run_direct(model, feeds, rewrite), on_cpu(model, feeds), strict=True):
        assert_agree(got, want, 2e-6)


@pytest.mark.usefixtures("always")
def test_one_plan_for_all_sizes() -> None:
    """Channels side by side in each pixel: the rows are of fixed size, whatever the image is."""
    text = (
        "(float[N, 8, H, W] x) => (y) { a = Conv(x, k) b = Conv(x, k) c = Relu(b) g = Concat<axis=1>(a, c) y = "
        "GlobalMaxPool(g) }"
    )
    model = model_of(text, {"k": data(16, 8, 1, 1)})
    program = Program(from_onnx(model), Config(), Gpu.open(Config()), rewrite)
    try:
        for size in ((2, 20, 31), (3, 9, 14)):
            feeds = {"x": data(size[0], 8, *size[1:])}
            assert_agree(run_program(program, feeds)[0], on_cpu(model, feeds)[0], 2e-6)
        assert program.planned == 1
    finally:
        program.close()


@pytest.mark.parametrize(
    ("shape", "chain", "in_place"),
    [
        ("2, 8, 6, 5", "a = Exp(x) b = Neg(z)", False),
        ("2, 8, 6, 5", "a = Exp(x) r = Softmax(z) b = Softmax<axis=1>(r)", True),
        ("200, 64, 32, 32", "a = Exp(x) b = Neg(z)", True),
    ],
)
def test_parts_that_could_be_made_side_by_side_are_copied_while_they_are_small(
    shape: str, chain: str, in_place: bool
) -> None:
    """A barrier would separate them; one after another they wait anyway."""
    text = f"(float[{shape}] x, float[{shape}] z) => (y) {{ {chain} y = Concat<axis=1>(a, b) }}"
    assert bool([s for s in shaders(model_of(text)) if s.startswith("concat")]) != in_place


@pytest.mark.usefixtures("always")
def test_rules_for_plans_can_fail() -> None:
    plan = plan_of(graph_of(f"{HEAD} => (y) {{ a = Exp(x) b = Neg(z) c = Concat<axis=1>(a, b) y = Softmax(c) }}"))
    assert plan_violations(plan) == []
    first, second, softmax = (s for s in plan.steps if isinstance(s, Dispatch))
    assert first.kernel.into is not None
    assert second.kernel.into is not None

    def wrong(*steps: Dispatch) -> list[str]:
        return plan_violations(replace(plan, steps=steps))

    assert any("of which 240 elements of a row are not written yet" in v for v in wrong(first, softmax))
    assert any("is never whole: 240 elements of a row are missing" in v for v in wrong(first))
    moved = replace(
        second, kernel=replace(second.kernel, into=replace(second.kernel.into, start=first.kernel.into.start + 4))
    )
    assert any("where others are" in v for v in wrong(first, moved, softmax))
    another = replace(second, kernel=replace(second.kernel, into=replace(second.kernel.into, value="other")))
    assert any("before 'c' in it is whole" in v for v in wrong(first, another, softmax))


@pytest.mark.usefixtures("always")
def test_the_rules_can_fail() -> None:
    graph = graph_of(IN_PLACE["steps and pools"])
    work = Work(graph, static_types(graph), Limits())
    run(PASSES, work)
    assert violations(work) == []
    assert list(PROPERTIES[PARTS_PLACED](work)) == []
    work.graph = work.graph.with_nodes(tuple(n for n in work.graph.nodes if n.op != "Exp"))
    assert any("which is None" in v for v in PROPERTIES[PARTS_PLACED](work))
