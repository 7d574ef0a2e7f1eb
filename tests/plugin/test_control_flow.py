"""If, Loop and Scan as kernels of ours: what a turn leaves stays on the device; and left to the CPU where that is
predicted to be faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession, plugin
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.partitioner import Costs
from tests.plugin.cases import Opened, assert_close, open_session, reference

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'

COUNTED = """m (float[N, 4] x, int64 n) => (y, s) <float[4] W = {0.5, -1.0, 0.25, 2.0}> {
    y, s = Loop (n, , x) <body = turn (int64 i, bool go, float[N, 4] v) => (bool going, v1, out) {
        going = Identity(go)  a = Mul(v, W)  b = Add(a, x)  v1 = Sigmoid(b)  out = ReduceSum <keepdims = 0> (v1) }> }"""

UNTIL = """m (float[N, 4] x, int64 n, float limit) => (y, s) {
    true = Constant <value = bool {1}> ()
    y, s = Loop (n, true, x) <body = turn (int64 i, bool go, float[N, 4] v) => (bool going, v1, out) {
        v1 = Add(v, x)  out = Mul(v1, v1)  sum = ReduceSum <keepdims = 0> (v1)  going = Less(sum, limit) }> }"""

WHILE_COUNTING = """m (float[N, 4] x, int64 n) => (y) {
    most = Constant <value = int64 {1000}> ()  true = Constant <value = bool {1}> ()
    y = Loop (most, true, x) <body = turn (int64 i, bool go, float[N, 4] v) => (bool going, v1) {
        one = Constant <value = int64 {1}> ()  next = Add(i, one)  going = Less(next, n)  a = Tanh(v)  v1 = Add(a, x) }> }"""

GROWING = """m (float[1, 4] x, int64 n) => (rows, sums) {
    zero = Constant <value = int64[1] {0}> ()
    none = Slice(x, zero, zero, zero)
    rows, sums = Loop (n, , none) <body = turn (int64 i, bool go, float[K, 4] v) => (bool going, grown, sum) {
        going = Identity(go)  k = Cast <to = 1> (i)  row = Add(x, k)  grown = Concat <axis = 0> (v, row)
        axes = Constant <value = int64[1] {0}> ()  sum = ReduceSum <keepdims = 1> (grown, axes) }> }"""

NESTED = """m (float[2, 4] x, int64 n, int64 k) => (y) {
    y = Loop (n, , x) <body = outer (int64 i, bool go, float[2, 4] v) => (bool going, v2) {
        going = Identity(go)  half = Constant <value = float {0.5}> ()  b = Mul(v, half)  a = Add(b, x)
        v2 = Loop (k, , a) <body = inner (int64 j, bool on, float[2, 4] u) => (bool onward, float[2, 4] u1) {
            onward = Identity(on)  t = Mul(u, x)  u1 = Tanh(t) }> }> }"""

BRANCHES_IN_TURNS = """m (float[2, 4] x, int64 n) => (y) {
    y = Loop (n, , x) <body = turn (int64 i, bool go, float[2, 4] v) => (bool going, v2) {
        going = Identity(go)  half = Constant <value = float {0.5}> ()  mean = ReduceMean <keepdims = 0> (v)  large = Greater(mean, half)
        v2 = If (large) <then_branch = smaller () => (float[2, 4] a) { a = Mul(v, mean) },
                         else_branch = larger () => (float[2, 4] b) { c = Add(v, x)  b = Abs(c) }> }> }"""

BYTES = """m (uint8[3] x, int64 n) => (y, s, t) {
    y, s, t = Loop (n, , x) <body = turn (int64 i, bool go, uint8[3] v) => (bool going, v1, bool[3] out, v1copy) {
        going = Identity(go)  v1 = Add(v, x)  ten = Constant <value = uint8 {10}> ()  out = Greater(v1, ten)  v1copy = Identity(v1) }> }"""

SCAN = """m (float[2, 3] h, float[T, 2, 3] xs, float[T, 3] zs) => (last, ys, counts) {
    last, ys, counts = Scan (h, xs, zs) <num_scan_inputs = 2, scan_input_directions = [%s], scan_output_directions = [%s],
        body = step (float[2, 3] before, float[2, 3] x, float[3] z) => (float[2, 3] after, float[2, 3] y, float count) {
            a = Add(before, x)  b = Mul(a, z)  after = Tanh(b)  y = Sub(after, x)  count = ReduceSum <keepdims = 0> (after) }> }"""

OVER_COLUMNS = """m (float[2] h, float[2, T] xs) => (last, ys) {
    last, ys = Scan (h, xs) <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        body = step (float[2] before, float[2] x) => (float[2] after, float[2] y) { a = Add(before, x)  after = Tanh(a)  y = Sub(a, x) }> }"""

IF = """m (float[N, 4] x, bool c) => (y) {
    a = Exp(x)
    r = If (c) <then_branch = yes () => (float[N, 4] p) { q = Mul(a, x)  p = Relu(q) }, else_branch = no () => (float[N, 4] s) {
        t = Sigmoid(a)  s = Sub(t, x) }>
    y = Mul(r, r) }"""


def model(text: str) -> bytes:
    return bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())


def n(value: int) -> Any:
    return np.array(value)


def resident(opened: Opened) -> set[str]:
    """The ops of ours that have bodies."""
    return {
        node.op
        for report in opened.state.reports
        for node in report.nodes
        if node.device == "gpu" and node.op in ("If", "Loop", "Scan")
    }


def same(text: str, *feeds: dict[str, Any], **options: object) -> Opened:
    """Runs with all of these feeds are as those of the CPU provider, and nothing falls back."""
    whole = model(text)
    opened = open_session(whole, strict=1, **options)
    for each in feeds:
        assert_close(opened.run(**each), reference(whole, **each))
    assert not [e for e in opened.state.events if e.kind != "notice"]
    return opened


@pytest.fixture
def x(rng: np.random.Generator) -> Any:
    return rng.normal(size=(3, 4)).astype("f")


@pytest.mark.parametrize("text", [COUNTED, WHILE_COUNTING], ids=["turns given", "counting"])
def test_loops_of_no_turn_one_and_many(text: str, x: Any) -> None:
    opened = same(text, *({"x": x[:rows], "n": n(turns)} for turns, rows in ((5, 3), (0, 3), (1, 2), (100, 2), (5, 1))))
    assert resident(opened) == {"Loop"}


def test_a_loop_that_ends_by_its_data(rng: np.random.Generator) -> None:
    x = rng.uniform(0.1, 1, (3, 4)).astype("f")
    limits = [float(x.sum()) * turns for turns in (0.5, 2.5, 7.5, 100)]
    opened = same(
        UNTIL,
        *({"x": x, "n": n(20), "limit": np.array(limit, "f")} for limit in limits),
        {"x": x, "n": n(0), "limit": np.array(1, "f")},
    )
    assert resident(opened) == {"Loop"}
    assert [len(opened.run(x=x, n=n(20), limit=np.array(limit, "f"))[1]) for limit in limits] == [1, 2, 7, 20]


def test_a_state_that_grows(x: Any) -> None:
    assert resident(same(GROWING, *({"x": x[:1], "n": n(turns)} for turns in (1, 2, 0)))) == {"Loop"}


def test_a_loop_in_a_loop(x: Any) -> None:
    feeds = [{"x": x[:2], "n": n(turns), "k": n(inner)} for turns, inner in ((3, 4), (0, 4), (3, 0), (1, 1))]
    opened = same(NESTED, *feeds)
    assert (
        sum(node.op == "Loop" and node.device == "gpu" for report in opened.state.reports for node in report.nodes) == 2
    )


def test_branches_in_the_turns_of_a_loop(x: Any) -> None:
    opened = same(BRANCHES_IN_TURNS, *({"x": x[:2] * scale, "n": n(turns)} for turns in (0, 1, 6) for scale in (1, -3)))
    assert resident(opened) == {"Loop", "If"}


def test_what_turns_give_in_odd_numbers_of_bytes(rng: np.random.Generator) -> None:
    given = rng.integers(0, 9, 3).astype(np.uint8)
    assert resident(same(BYTES, *({"x": given, "n": n(turns)} for turns in (1, 5, 0)))) == {"Loop"}


@pytest.mark.parametrize("directions", [("0, 0", "0, 0"), ("1, 0", "0, 1"), ("0, 1", "1, 0")])
@pytest.mark.parametrize("steps", [1, 7])
def test_scans(directions: tuple[str, str], steps: int, rng: np.random.Generator) -> None:
    feeds = [
        {
            name: rng.normal(size=shape).astype("f")
            for name, shape in (("h", (2, 3)), ("xs", (steps, 2, 3)), ("zs", (steps, 3)))
        }
        for _ in range(2)
    ]
    assert resident(same(SCAN % directions, *feeds)) == {"Scan"}


def test_a_scan_over_another_axis_is_left_to_the_cpu(rng: np.random.Generator) -> None:
    opened = same(OVER_COLUMNS, {"h": rng.normal(size=2).astype("f"), "xs": rng.normal(size=(2, 5)).astype("f")})
    assert resident(opened) == set()


def test_both_branches_of_an_if(x: Any) -> None:
    assert resident(same(IF, *({"x": x, "c": np.array(c)} for c in (True, False, True)))) == {"If"}


OF_A_FILE = """m (float[N, 8] x, bool c) => (y) {
    y = If (c) <then_branch = yes () => (float[N, 8] p) { a = MatMul(x, W)  p = Relu(a) },
        else_branch = no () => (float[N, 8] s) {
            d = Cast <to = 1> (h)  b = Add(x, d)  e = If (c) <
                then_branch = inner () => (float[N, 8] u) { u = Sigmoid(b) },
                else_branch = other () => (float[N, 8] v) { v = MatMul(b, W) }>
            f = DequantizeLinear(q, scale)  s = Add(e, f) }> }"""


@pytest.mark.parametrize("where", ["beside the model", "in another folder"])
def test_bodies_read_weights_of_their_outer_graph_from_files(
    where: str, x: Any, rng: np.random.Generator, tmp_path: Path
) -> None:
    """onnxruntime gives the value of such a weight only to the graph that has it."""
    whole = onnx.parser.parse_model(HEAD + OF_A_FILE)
    weights = {"W": rng.normal(size=(8, 8)).astype("f"), "h": rng.normal(size=8).astype("f2"), "scale": np.float32(0.1)}
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    tensors.append(onnx.helper.make_tensor("q", onnx.TensorProto.INT4, [8], [-8, 7, 3, -1, 0, 5, -4, 2]))
    whole.graph.initializer.extend(tensors)
    feeds = [{"x": rng.normal(size=(3, 8)).astype("f"), "c": np.array(c)} for c in (True, False)]
    wanted = [reference(whole.SerializeToString(), **each) for each in feeds]
    onnx.save(whole, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    source: Any = tmp_path / "m.onnx"
    settings = onnxruntime.SessionOptions()
    if where == "in another folder":
        settings.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
        source = source.read_bytes()
    options = {"placement": "gpu", "strict": "1"}
    session = InferenceSession(source, settings, provider_options=options)
    for each, expected in zip(feeds, wanted, strict=True):
        assert_close(session.run(None, each), expected)
    assert not [e for e in session.state.events if e.kind != "notice"]
    assert not [node.op for report in session.state.reports for node in report.nodes if node.device == "cpu"]


STRINGS = """m (bool c, string[N] x) => (y) {
    r = If (c) <then_branch = yes () => (string[N] p) { p = Concat <axis = 0> (x, x) },
        else_branch = no () => (string[N] s) { s = Identity(x) }>
    y = Concat <axis = 0> (r, x) }"""


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (IF, {"placement": "gpu", "isolation": "process"}, "isolation=process"),
        (IF, {"placement": "auto", "adapter": "llvmpipe"}, "left to the CPU with its body"),
        (STRINGS, {"placement": "gpu"}, "no tensor of a known type"),
    ],
    ids=["isolation", "auto", "strings"],
)
def test_why_control_flow_is_not_on_the_gpu(text: str, options: dict[str, object], said: str) -> None:
    """If, Loop and Scan have kernels of ours, so the reason for one that stays on the CPU is not that there is none."""
    opened = open_session(model(text), **options)
    reasons = [node.reason for report in opened.state.reports for node in report.nodes if node.op == "If"]
    assert reasons
    assert all(said in reason and "no kernel" not in reason for reason in reasons), reasons


def test_what_turns_leave_stays_on_the_device(x: Any) -> None:
    opened = same(COUNTED, {"x": x, "n": n(9)})
    before = dict(opened.state.counts())
    opened.run(x=x, n=n(9))
    after = opened.state.counts()
    assert after["host_to_device"] - before["host_to_device"] == 1, "x, once"
    assert after["device_to_host"] - before["device_to_host"] == 2 + 8, "the last state, and what each turn gave"


def test_small_bodies_are_left_to_the_cpu_and_large_ones_are_not(x: Any) -> None:
    opened = open_session(model(COUNTED))
    assert_close(opened.run(x=x, n=n(5)), reference(model(COUNTED), x=x, n=n(5)))
    (loop,) = (node for report in opened.state.reports for node in report.nodes if node.op == "Loop")
    assert (loop.device, loop.code) == ("cpu", "COST")
    assert "a turn is predicted to take" in loop.reason
    assert not opened.state.partitions
    fast = Costs(replace(GUESSED, dispatch_s=1e-9), host_s=1e-9)
    with plugin.capture(fast):
        quick = open_session(model(COUNTED))
    assert resident(quick) == {"Loop"}
    assert_close(quick.run(x=x, n=n(5)), reference(model(COUNTED), x=x, n=n(5)))
    given = next(node for report in quick.state.reports for node in report.nodes if node.writes == ("going",))
    assert (given.device, given.code) == ("cpu", "HOST")


def test_a_worker_leaves_them_to_the_cpu(x: Any) -> None:
    """Its values are in host memory."""
    assert resident(same(COUNTED, {"x": x, "n": n(3)}, isolation="process")) == set()


def test_no_table_of_theirs_outlives_the_session(x: Any) -> None:
    before = plugin.live_tables()
    opened = same(NESTED, {"x": x[:2], "n": n(1), "k": n(1)})
    assert plugin.live_tables()["LoopHelper"] == before["LoopHelper"] + 2
    opened.session = None
    assert plugin.live_tables() == before
