"""Sizes that the data decide stay inside a partition (decision 27): routing of experts, ends of detectors, what is cut
all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import BOOL, FLOAT32, INT64, TensorType
from ort_gpu_ep.kernels.lowering import SIZES, facts_of, walk
from ort_gpu_ep.partitioner.passes import rewrite
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.kept import from_data, to_data
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.template import make_template
from ort_gpu_ep.scheduler.verify import violations
from tests.direct import opened, run_program
from tests.ops.single_node import Array, on_cpu

RNG = np.random.default_rng(27)
WIDTH, INNER, EXPERTS, BEST = 16, 24, 4, 2


class Graph:
    """A model that is written node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []

    def __call__(
        self, op: str, *inputs: str | Array | list[int] | int, outputs: int = 1, name: str = "", **attributes: Any
    ) -> Any:
        names = [v if isinstance(v, str) else self.hold(v) for v in inputs]
        made = [name or f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, **attributes))
        return made[0] if outputs == 1 else made

    def hold(self, value: Array | list[int] | int) -> str:
        self.held.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.held)}"))
        return self.held[-1].name

    def model(
        self, inputs: dict[str, list[int | str]], outputs: list[str], kinds: dict[str, int] | None = None
    ) -> onnx.ModelProto:
        declared = [
            helper.make_tensor_value_info(n, (kinds or {}).get(n, TensorProto.FLOAT), shape)
            for n, shape in inputs.items()
        ]
        graph = helper.make_graph(
            self.nodes, "g", declared, [helper.make_empty_tensor_value_info(n) for n in outputs], self.held
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def weights_of(rows: int, columns: int) -> Array:
    """Products with them are as large as what they are of."""
    return floats(rows, columns) / np.float32(rows**0.5)


def experts(rows: int | str, which: str = "place") -> onnx.ModelProto:
    """The middle of a Mixtral block as TorchScript writes it: from x and the router's choice `place` [rows, BEST] to
    the sum of experts."""
    g = Graph()
    weights = g("Softmax", g("MatMul", "x", floats(WIDTH, BEST)), axis=1)
    mask = g("Transpose", g("OneHot", which, EXPERTS, np.array([0, 1]), axis=-1), perm=[2, 1, 0])
    total = g("Mul", "x", np.float32(0))
    for k in range(EXPERTS):
        of_expert = g("Cast", g("Squeeze", g("Gather", mask, [k], axis=0), [0]), to=TensorProto.BOOL)
        places = g("Transpose", g("NonZero", of_expert), perm=[1, 0])
        rank, row = g("Split", places, [1, 1], outputs=2, axis=1)
        rank, row = g("Squeeze", rank, [1]), g("Squeeze", row, [1])
        x = g("Reshape", g("Gather", g("Unsqueeze", "x", [0]), row, axis=1), [-1, WIDTH])
        gate = g("MatMul", x, weights_of(WIDTH, INNER))
        inner = g("Mul", g("Mul", gate, g("Sigmoid", gate)), g("MatMul", x, weights_of(WIDTH, INNER)))
        y = g("MatMul", inner, weights_of(INNER, WIDTH))
        share = g("Gather", g("Reshape", weights, [-1, 1]), g("Add", g("Mul", row, BEST), rank), axis=0)
        share = g("Reshape", g("Reshape", share, [-1, 1]), g("Concat", g("Shape", row), [1], axis=0))
        y = g("Mul", y, share)
        index = g("Expand", g("Unsqueeze", row, [1]), g("Shape", y))
        filled = g("ScatterElements", g("ConstantOfShape", g("Shape", total)), index, y, axis=0)
        total = g("Add", total, filled, name="y" if k == EXPERTS - 1 else "")
    return g.model({"x": [rows, WIDTH], which: [rows, BEST]}, ["y"], {which: TensorProto.INT64})


def routes(rows: int) -> list[Array]:
    """Who goes where: all to two experts, each to one, one row to another one, any."""
    same = np.tile(np.array([[1, 3]]), (rows, 1))
    one = same.copy()
    one[0] = (2, 0)
    return [
        same,
        one,
        np.array([RNG.permutation(EXPERTS)[:BEST] for _ in range(rows)]),
        np.stack([np.arange(rows) % 2, np.arange(rows) % 2 + 2], 1),
    ]


def session_of(model: onnx.ModelProto, **options: str) -> InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return InferenceSession(
        model.SerializeToString(), settings, provider_options={"placement": "gpu", "strict": "1", **options}
    )


def check(model: onnx.ModelProto, runs: list[dict[str, Array]], partitions: int = 1, **options: str) -> None:
    """All runs give what onnxruntime's CPU gives, in so many partitions, nothing on the CPU."""
    session = session_of(model, **options)
    for feeds in runs:
        for got, want in zip(session.run(None, feeds), on_cpu(model, feeds), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    report = session.explain().reports[-1]
    assert [n.op for n in report.nodes if n.device == "cpu"] == []
    assert len(report.partitions) == partitions
    assert not session.explain().events


@pytest.mark.parametrize(
    ("rows", "options"), [(11, {}), ("N", {}), ("N", {"fusion": "0"}), ("N", {"isolation": "process"})], ids=str
)
def test_routing_of_experts_is_one_partition(rows: int | str, options: dict[str, str]) -> None:
    """Experts get no row, one, some, all of them."""
    sizes = [rows] if isinstance(rows, int) else [11, 1, 40, 11]
    check(experts(rows), [{"x": floats(n, WIDTH), "place": place} for n in sizes for place in routes(n)], **options)


def test_runs_that_repeat_and_bound_ones() -> None:
    """What is recorded ahead is the same whatever a run counts."""
    model = experts(9)
    session, places = session_of(model), routes(9)
    for k in range(12):
        feeds = {"x": floats(9, WIDTH), "place": places[k % len(places)]}
        np.testing.assert_allclose(session.run(None, feeds)[0], on_cpu(model, feeds)[0], rtol=2e-5, atol=2e-5)
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], on_cpu(model, feeds)[0], rtol=2e-5, atol=2e-5)


def detector(anchors: int | str, classes: int = 3, most: int = 8) -> onnx.ModelProto:
    """The end of a detector that exports its suppression: candidates by a mask, classes apart by an offset, padded to a
    fixed number."""
    g = Graph()
    boxes, scores = g("Split", g("Transpose", "x", perm=[0, 2, 1]), [4, classes], outputs=2, axis=2)
    best, kind = g("ReduceMax", scores, [-1], keepdims=0), g("ArgMax", scores, axis=-1, keepdims=0)
    boxes, best, kind = (g("Gather", v, 0, axis=0) for v in (boxes, best, kind))
    places = g("Transpose", g("NonZero", g("Greater", best, np.float32(0.5))), perm=[1, 0])
    boxes, best, kind = (g("GatherND", v, places) for v in (boxes, best, kind))
    size = g("Gather", g("Shape", kind), 0, axis=0)
    shape = g("Concat", g("Unsqueeze", size, [0]), [4], axis=0)
    ones = g("ConstantOfShape", g("Shape", shape), value=helper.make_tensor("v", TensorProto.INT64, [1], [1]))
    shape = g("Where", g("Equal", shape, g("Mul", ones, -1)), ones, shape)
    offsets = g(
        "Cast",
        g("Expand", g("Reshape", kind, g("Concat", g("Unsqueeze", size, [0]), [1], axis=0)), shape),
        to=TensorProto.FLOAT,
    )
    apart = g("Unsqueeze", g("Add", boxes, g("Mul", offsets, np.float32(4))), [0])
    kept = g(
        "NonMaxSuppression",
        apart,
        g("Unsqueeze", g("Unsqueeze", best, [0]), [0]),
        np.array([2**63 - 1]),
        np.array([0.4], np.float32),
    )
    kept = g("Slice", g("Squeeze", g("Gather", kept, [2], axis=1), [1]), [0], [most], [0], [1])
    columns = [
        g("Reshape", g("Gather", v, kept, axis=0), [-1, 1]) for v in (best, g("Cast", kind, to=TensorProto.FLOAT))
    ]
    rows = g("Concat", g("Gather", boxes, kept, axis=0), *columns, axis=-1)
    missing = g("Unsqueeze", g("Sub", most, g("Gather", g("Shape", rows), 0, axis=0)), [0])
    padded = g("Pad", rows, g("Concat", [0, 0], missing, [0], axis=0))
    g("Expand", padded, [most, 6], name="y")
    g("Cast", rows, name="rows", to=TensorProto.FLOAT)
    return g.model({"x": [1, 4 + classes, anchors]}, ["y", "rows"])


@pytest.mark.parametrize("anchors", [60, "N"])
def test_a_detector_with_its_suppression_is_one_partition(anchors: int | str) -> None:
    runs = []
    for n, threshold in (
        (60, 0.0),
        (60, 0.45),
        (60, 1.0),
        *(((200, 0.3), (1, 0.0), (1, 1.0)) if anchors == "N" else ()),
    ):
        corners = RNG.random((2, n))
        x = np.concatenate(
            [corners, corners + 0.05 + RNG.random((2, n)) / 3, RNG.random((3, n)) / 2 + threshold / 2], 0
        )
        runs.append({"x": x[None].astype(np.float32)})
    check(detector(anchors), runs)


def chosen(behind: Callable[[Graph, str, str], str]) -> onnx.ModelProto:
    """What is behind the rows of x that `mask` chooses. behind: is given the graph, the rows and their places, and
    gives its output."""
    g = Graph()
    places = g("Squeeze", g("NonZero", "mask"), [0])
    return g.model(
        {"x": ["N", 8], "mask": ["N"]},
        [behind(g, g("Gather", "x", places, axis=0), places)],
        {"mask": TensorProto.BOOL},
    )


def masked(*sizes: int) -> list[dict[str, Array]]:
    """Nothing, one row, some, all."""
    return [
        {"x": floats(n, 8), "mask": mask}
        for n in sizes
        for mask in (np.zeros(n, bool), np.arange(n) == n // 2, RNG.random(n) < 0.5, np.ones(n, bool))
    ]


@pytest.mark.parametrize(
    "op", ["rows with themselves", "softmax", "sum", "largest", "last", "joined", "positions", "norm", "told"]
)
def test_what_is_in_the_same_partition(op: str) -> None:
    behind: dict[str, Callable[[Graph, str, str], str]] = {
        "rows with themselves": lambda g, rows, places: g("MatMul", g("Transpose", rows), rows),
        "softmax": lambda g, rows, places: g("Softmax", rows, axis=0),
        "sum": lambda g, rows, places: g("ReduceSum", rows, [0], keepdims=0),
        "largest": lambda g, rows, places: g(
            "TopK", rows, g("Min", g("Slice", g("Shape", rows), [0], [1]), [5]), outputs=2, axis=0
        )[0],
        "last": lambda g, rows, places: g("Slice", rows, [-3], [2**40], [0]),
        "joined": lambda g, rows, places: g("Concat", rows, "x", rows, axis=0),
        "positions": lambda g, rows, places: g("Range", 0, g("Gather", g("Shape", rows), 0), 1),
        "norm": lambda g, rows, places: g("LayerNormalization", rows, floats(8), axis=-1),
        "told": lambda g, rows, places: g("Mul", g("Shape", g("Concat", rows, "x", axis=0)), 3),
    }
    check(chosen(behind[op]), masked(1, 9, 70))


@pytest.mark.parametrize("op", ["one axis less", "most", "place of the most", "a decision"])
def test_what_needs_the_number_is_in_the_next_partition(op: str) -> None:
    """A size of 0 or 1 has another answer there; none of it is on the CPU where there is something to compute."""
    behind: dict[str, Callable[[Graph, str, str], str]] = {
        "one axis less": lambda g, rows, places: g("Squeeze", rows),
        "most": lambda g, rows, places: g("ReduceMax", rows, [0], keepdims=0),
        "place of the most": lambda g, rows, places: g("ArgMax", rows, axis=0),
        "a decision": lambda g, rows, places: g(
            "Where", g("Greater", g("Size", rows), 20), np.float32(1), np.float32(2)
        ),
    }
    check(
        chosen(behind[op]),
        [feeds for feeds in masked(9) if feeds["mask"].any()],
        partitions=2 if op != "a decision" else 1,
    )


def test_parts_have_to_be_as_much_as_there_is() -> None:
    """Split by given sizes, as the exporter of experts writes it: of other data onnxruntime says what is wrong, and so
    do we."""

    def parts(g: Graph, rows: str, places: str) -> str:
        first, second = g("Split", rows, [2, 3], outputs=2, axis=0)
        return str(g("Concat", second, first, axis=0))

    model = chosen(parts)
    session = session_of(model, strict="0")
    for count in (5, 4, 5, 0, 5):
        feeds = {"x": floats(9, 8), "mask": np.arange(9) < count}
        if count == 5:
            np.testing.assert_array_equal(session.run(None, feeds)[0], on_cpu(model, feeds)[0])
            continue
        with pytest.raises(Exception, match=r"[Ss]plit"):
            session.run(None, feeds)
    assert len(session.explain().reports[-1].partitions) == 1


def test_one_plan_serves_all_counts_and_all_sizes() -> None:
    model = chosen(lambda g, rows, places: g("Concat", g("Exp", rows), rows, axis=0))
    program = Program(opened(from_onnx(model)), Config(), Gpu.open(Config()), rewrite)
    for feeds in masked(20, 33, 64):
        for got, want in zip(run_program(program, feeds), on_cpu(model, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert program.planned == 1
    program.close()


def test_a_plan_with_counts_is_kept() -> None:
    graph = opened(from_onnx(experts(11)))
    types = [TensorType(FLOAT32, (11, WIDTH)), TensorType(INT64, (11, BEST))]
    limits = Gpu.open(Config()).limits
    template = make_template(graph, types, limits, rewrite)
    data = to_data(template)
    again = from_data(data, types, limits, {})
    assert again.plan.steps == template.plan.steps or str(again.plan) == str(template.plan)
    for n in (11, 5):
        filled = [t.fill([TensorType(FLOAT32, (n, WIDTH)), TensorType(INT64, (n, BEST))]) for t in (template, again)]
        assert filled[0] is not None
        assert filled[0] == filled[1]
        assert not violations(again.at(filled[0]), limits)
    atom = next(a for a in data["atoms"] if a[0] == "count")
    atom[1] = "another place"
    with pytest.raises(ValueError, match="nothing in the plan finds"):
        from_data(data, types, limits, {})


def test_what_calculates_sizes_is_in_front_of_what_reads_them() -> None:
    plan = make_template(
        from_onnx(experts(11)),
        [TensorType(FLOAT32, (11, WIDTH)), TensorType(INT64, (11, BEST))],
        Gpu.open(Config()).limits,
    ).plan
    sizes = [
        k for k, step in enumerate(plan.steps) if isinstance(step, Dispatch) and step.kernel.shader == "sizes.wgsl"
    ]
    assert len(sizes) >= EXPERTS
    assert plan.writes_parameters
    assert not violations(plan)


def test_more_counts_than_a_dispatch_can_bind() -> None:
    """Rows that many masks choose, one behind the other: what is joined begins another partition where a dispatch binds
    too little."""
    g, parts = Graph(), []
    for k in range(12):
        mask = g("Greater", g("Gather", "x", k, axis=1), np.float32(0))
        parts.append(g("Gather", "x", g("Squeeze", g("NonZero", mask), [0]), axis=0))
    g("Concat", *parts, axis=0, name="y")
    model = g.model({"x": [9, 12]}, ["y"])
    session = session_of(model)
    for _ in range(3):
        feeds = {"x": floats(9, 12)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], on_cpu(model, feeds)[0])
    limits = replace(Gpu.open(Config()).limits, max_buffers_per_stage=8)
    facts = facts_of(graph := from_onnx(model), {"x": TensorType(FLOAT32, (9, 12))})
    breaks = [node.op for node, _, _ in walk(graph, facts, limits) if id(node) in facts.breaks]
    assert breaks == ["Concat"]


def test_where_the_device_does_not_calculate_sizes_right() -> None:
    """What reads a size that the data decide is in the next partition then."""
    graph = from_onnx(chosen(lambda g, rows, places: g("Exp", rows)))
    inputs, limits = {"x": TensorType(FLOAT32, (9, 8)), "mask": TensorType(BOOL, (9,))}, Gpu.open(Config()).limits
    for disabled, breaks in (((), []), (((SIZES, "a probe"),), ["Squeeze"])):
        facts = facts_of(graph, inputs)
        assert [
            n.op for n, _, _ in walk(graph, facts, replace(limits, disabled=disabled)) if id(n) in facts.breaks
        ] == breaks


def test_a_partition_of_which_nobody_reads_anything_may_be_left_to_the_cpu() -> None:
    """The most of no numbers has no kernel; onnxruntime leaves the node in the graph, though it is nobody's."""

    def behind(g: Graph, rows: str, places: str) -> str:
        g("ReduceMax", places, [0])
        return str(g("Exp", rows))

    model = chosen(behind)
    session = session_of(model, strict="0")
    for feeds in masked(9):
        np.testing.assert_allclose(session.run(None, feeds)[0], on_cpu(model, feeds)[0], rtol=1e-6)
