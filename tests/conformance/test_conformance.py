"""All of ONNX's node cases, strictly on the GPU, compared with the recorded outcome of each; some of each op in a
worker process, too.

The record is written by `ort-gpu-ep conformance --status tests/conformance/status.txt`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep.cli.conformance import status_text
from ort_gpu_ep.health import conformance
from ort_gpu_ep.health.conformance import BY_VALUE, STATUSES, Outcome, cases, run
from ort_gpu_ep.session.session import InferenceSession
from tests.unit.graphs import model_of

RECORD = Path(__file__).parent / "status.txt"
RECORDED_WITH = "1.32"  # onnxruntime
MIN_PASS = 1050
RELU = "(float[3, 5] x) => (float[3, 5] y) { y = Relu(x) }"


@cache
def recorded() -> dict[str, str]:
    """Case -> status and code."""
    assert RECORD.is_file(), f"write it: ort-gpu-ep conformance --status {RECORD}"
    return dict(line.split(" ", 1) for line in RECORD.read_text("utf-8").splitlines())


def is_refused(case: str, status: str | None) -> bool:
    """Whether one of two versions of onnxruntime, this one and the record's, does not take what the other one takes: an
    opset, say."""
    same = onnxruntime.__version__.startswith(f"{RECORDED_WITH}.")
    return not same and "EXCLUDED" in (status, recorded().get(case))


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    onnxruntime.set_default_logger_severity(4)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return list(run(cases(), InferenceSession))


def unlike(selected: list[Any], by_types: bool = True) -> list[Any]:
    """Of the cases that pass, the first of those with the same ops, and with the same number and types of inputs."""
    first: dict[object, Any] = {}
    for each in selected:
        graph = each.model.graph
        if recorded()[each.name] == "PASS":
            kinds = tuple(given.type.tensor_type.elem_type for given in graph.input) if by_types else ()
            first.setdefault((frozenset(node.op_type for node in graph.node), kinds), each)
    return list(first.values())


def holds_bodies(case: Any) -> bool:
    """Whether an If, Loop or Scan is in it, in the body of a function too."""
    nodes = [*case.model.graph.node, *(node for function in case.model.functions for node in function.node)]
    return any(attribute.type == onnx.AttributeProto.GRAPH for node in nodes for attribute in node.attribute)


@pytest.mark.parametrize(
    ("by_types", "step", "least"), [(False, 2, 90), pytest.param(True, 1, 300, marks=pytest.mark.nightly)]
)
def test_a_worker_gives_the_same(by_types: bool, step: int, least: int) -> None:
    """What it gets was pickled: each kernel's plan. How models are planned is the same as without; If, Loop and Scan
    stay in the process."""
    selected, options = unlike(cases(), by_types)[::step], {"isolation": "process"}
    held = {each.name for each in selected if holds_bodies(each)}
    # of one worker for all
    keeper = InferenceSession(model_of(RELU).SerializeToString(), provider_options={"placement": "gpu", **options})
    found = [o for o in run(selected, InferenceSession, options) if not is_refused(o.name, o.status)]
    assert {o.name: o.reason for o in found if o.status != "PASS" and o.name not in held} == {}
    declined = {o.name: o.reason for o in found if o.name in held and o.status != "PASS"}
    assert {o.status for o in found if o.name in declined} <= {"UNSUPPORTED"}
    assert all("can't keep its values on the GPU: isolation=process" in reason for reason in declined.values()), (
        declined
    )
    assert len(found) - len(held) > least
    del keeper


def test_no_case_fails(outcomes: list[Outcome]) -> None:
    assert {o.name: o.reason for o in outcomes if o.status == "FAIL"} == {}


def test_what_passed_still_passes(outcomes: list[Outcome]) -> None:
    now = {o.name: o for o in outcomes}
    lost = {
        name: now[name].as_dict() if name in now else "gone"
        for name, status in recorded().items()
        if status == "PASS"
        and (name not in now or (now[name].status != "PASS" and not is_refused(name, now[name].status)))
    }
    assert lost == {}


def test_the_record_is_up_to_date(outcomes: list[Outcome]) -> None:
    """Also where more passes than before: then the record is to be written again."""
    now, then = dict(line.split(" ", 1) for line in status_text(outcomes).splitlines()), recorded()
    changed = {
        name: (then.get(name), now.get(name))
        for name in sorted(now.keys() | then.keys())
        if now.get(name) != then.get(name) and not is_refused(name, now.get(name))
    }
    assert changed == {}, f"write it again: ort-gpu-ep conformance --status {RECORD}"


def test_enough_pass(outcomes: list[Outcome]) -> None:
    counts = Counter(o.status for o in outcomes)
    assert set(counts) <= set(STATUSES)
    assert counts["PASS"] >= MIN_PASS, counts
    assert counts["NOT_RUN"] == 0


def test_every_decline_has_a_reason(outcomes: list[Outcome]) -> None:
    assert [o.name for o in outcomes if o.status == "UNSUPPORTED" and not (o.code and o.reason)] == []
    assert [o.name for o in outcomes if o.status == "EXCLUDED" and not o.reason] == []


def test_what_is_claimed_is_run(outcomes: list[Outcome]) -> None:
    """With `strict` a run that the CPU would have to answer raises: none does, but for what values of the run
    decide."""
    by_run = {o.name: o.reason for o in outcomes if o.reason.endswith(BY_VALUE)}
    # its scales; Dropout's mode
    assert {name.removeprefix("test_").split("_")[0] for name in by_run} == {"resize", "training"}, by_run
    assert len(by_run) == 6, by_run


@pytest.mark.parametrize("name", ["test_relu", "test_split_to_sequence_1"])
def test_a_case_is_read_from_files(name: str, tmp_path: Path) -> None:
    """As onnx before 1.23 has them."""
    (case,) = cases(f"^{name}$")
    (case_set,) = case.data_sets
    onnx.save(case.model, tmp_path / "model.onnx")
    (tmp_path / "test_data_set_0").mkdir()
    for kind, values in zip(("input", "output"), case_set, strict=True):
        for i, value in enumerate(values):
            proto = (onnx.numpy_helper.from_list if isinstance(value, list) else onnx.numpy_helper.from_array)(value)
            (tmp_path / "test_data_set_0" / f"{kind}_{i}.pb").write_bytes(proto.SerializeToString())
    read = conformance._read(replace(case, model=None, data_sets=None, model_dir=str(tmp_path)))
    assert read.model == case.model
    (outcome,) = run([read], InferenceSession)
    assert outcome == next(run([case], InferenceSession))
    for got, wanted in zip(read.data_sets[0][1], case_set[1], strict=True):
        np.testing.assert_array_equal(conformance._array(got), wanted)


# ---- the runner itself: it must see what is wrong


def case(text: str, inputs: list[Any], wanted: list[Any], **constants: Any) -> Any:
    return SimpleNamespace(
        name="test_case", model=model_of(text, constants), data_sets=[(inputs, wanted)], rtol=1e-3, atol=1e-7
    )


@pytest.fixture
def values() -> Iterator[np.ndarray[Any, Any]]:
    return np.random.default_rng(2).standard_normal((3, 5)).astype("f")


def outcome(made: Any) -> Outcome:
    (found,) = run([made], InferenceSession)
    return found


def test_a_right_result_passes(values: np.ndarray[Any, Any]) -> None:
    assert outcome(case(RELU, [values], [np.maximum(values, 0)])) == Outcome("test_case", "PASS")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w + 0.01, "wrong result beyond rtol 0.001"),
        (lambda w: w.astype(np.float64), "expected float64"),
        (lambda w: w.reshape(5, 3), r"expected float32\(5, 3\)"),
        (lambda w: w * np.nan, "wrong result"),
    ],
)
def test_a_wrong_result_fails(change: Any, reason: str, values: np.ndarray[Any, Any]) -> None:
    found = outcome(case(RELU, [values], [change(np.maximum(values, 0))]))
    assert found.status == "FAIL"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reason)


def test_nan_and_infinity_where_they_belong(values: np.ndarray[Any, Any]) -> None:
    values[0, 0], values[1, 1], values[2, 2] = np.inf, -np.inf, np.nan
    text = "(float[3, 5] x) => (float[3, 5] y) { y = Neg(x) }"
    assert outcome(case(text, [values], [-values])).status == "PASS"
    assert outcome(case(text, [values], [np.nan_to_num(-values)])).status == "FAIL"


def test_a_numpy_number_is_a_scalar() -> None:
    text = "(float[3] x) => (float y) { y = ReduceSum<keepdims=0>(x) }"
    assert outcome(case(text, [np.array([1, 2, 4], "f")], [np.float32(7)])).status == "PASS"


def test_a_declined_node_is_unsupported() -> None:
    text = "(float[2, 2] x) => (float[2, 2] y) <float[2, 2] a> { a = com.microsoft.Inverse(x) y = Relu(a) }"
    assert outcome(case(text, [np.eye(2, dtype="f")], [np.eye(2, dtype="f")])) == Outcome(
        "test_case", "UNSUPPORTED", "OP", "Inverse: no kernel for com.microsoft:Inverse"
    )


def test_what_onnxruntime_rejects_is_excluded(values: np.ndarray[Any, Any]) -> None:
    made = case(RELU, [values], [values])
    made.model.opset_import[0].version = onnx.defs.onnx_opset_version() + 50
    found = outcome(made)
    assert found.status == "EXCLUDED"
    assert "onnxruntime: " in found.reason


def test_a_constant_graph_is_told_apart() -> None:
    """onnxruntime folds it: nothing of ours is tested."""
    text = "() => (float[2] y) { y = Relu(c) }"
    assert outcome(case(text, [], [np.array([1, 2], "f")], c=np.array([1, 2], "f"))).status == "FOLDED"
