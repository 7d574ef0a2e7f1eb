"""Plans and partitionings on disk: what is read is what would be made, and what lies in the file can't do harm."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from models import build
from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.digest import graph_digest
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.registry import Limits, UnknownValueError
from ort_gpu_ep.kernels.target import Tuned
from ort_gpu_ep.partitioner import Costs, rewrite
from ort_gpu_ep.partitioner import partition as decide
from ort_gpu_ep.partitioner.report import Partitioning
from ort_gpu_ep.plugin.partitioning import partition
from ort_gpu_ep.runtime import known_plans as module
from ort_gpu_ep.runtime.artefact import Artefact
from ort_gpu_ep.runtime.known_plans import template
from ort_gpu_ep.scheduler.kept import from_data, to_data
from ort_gpu_ep.scheduler.template import Template, make_template
from ort_gpu_ep.scheduler.verify import violations
from tests.artefacts import CONFIG, answers, change_answer, only_file, opened_anew
from tests.compressed.test_functions import constant, model_of, replaced
from tests.direct import opened
from tests.unit.graphs import graph_of, random_models, static_types, tensor

LIMITS = Limits()
NAMES = ["lenet5", "har_lstm", "encoder", "shufflenet", "squeezenet1_1", "unet"]
MLP = "(float[N, 16] x) => (float[N, 8] y) { h = MatMul(x, w)  s = Softmax(h)  y = MatMul(s, v) }"
WEIGHTS = {"w": np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8), "v": np.eye(8, dtype=np.float32)}
TYPES = (tensor(5, 16),)


def never() -> Any:
    raise AssertionError("it was there")


def asked_for(
    known: Artefact,
    make: Callable[[], Template],
    graph: Graph | None = None,
    limits: Limits = LIMITS,
    about: object = 1,
) -> Template:
    plan = template(known, graph or graph_of(MLP, WEIGHTS), TYPES, limits, {}, (about,), make)
    known.save()
    return plan


def partitioned(cache: Path, graph: Graph, config: Config = CONFIG, costs: Costs | None = None) -> Partitioning:
    """As a process of its own."""
    known = opened_anew(cache)
    partitioning = partition(known, graph, config, LIMITS, False, costs, {}, False)
    known.save()
    return partitioning


def planned(graph: Graph | None = None, limits: Limits = LIMITS) -> Template:
    return make_template(graph or graph_of(MLP, WEIGHTS), TYPES, limits, rewrite)


def assert_same(found: Template, made: Template, *others: tuple[TensorType, ...]) -> None:
    """All that a plan is, its sizes of a run and guards among them, and what it makes of some sizes."""
    assert to_data(found) == to_data(made)
    for types in (made.plan.inputs, *others):
        numbers = [
            t
            if all(isinstance(d, int) for d in t.shape)
            else TensorType(t.dtype, tuple(getattr(d, "hint", d) for d in t.shape))
            for t in types
        ]
        one, other = made.fill(numbers), found.fill(numbers)
        assert other == one
        if one is not None and other is not None:
            assert found.at(other) == made.at(one)


# ---- what is read is what would be made


@pytest.mark.parametrize("name", NAMES)
def test_networks(name: str, tmp_path: Path) -> None:
    graph = from_onnx(build(name))
    types = tuple(static_types(graph).values())
    for given_graph in (graph, opened(graph)):
        made = make_template(given_graph, types, LIMITS, rewrite)
        known = opened_anew(tmp_path)
        template(known, given_graph, types, LIMITS, {}, (), lambda made=made: made)  # type: ignore[misc]
        known.save()
        again = template(opened_anew(tmp_path), given_graph, types, LIMITS, {}, (), never)
        assert_same(again, made, tuple(TensorType(t.dtype, tuple(2 * d for d in t.shape)) for t in types))
    found = decide(graph, CONFIG, LIMITS, False)
    for make_or_read in range(2):
        assert partitioned(tmp_path, graph) == found, make_or_read


@settings(max_examples=40)
@given(random_models())
def test_random_models(model: onnx.ModelProto) -> None:
    graph = from_onnx(model)
    types = tuple(static_types(graph).values())
    for given_graph in (graph, opened(graph)):
        made = make_template(given_graph, types, LIMITS, rewrite)
        assert_same(from_data(json.loads(json.dumps(to_data(made))), types, LIMITS, {}), made)


def test_content_that_a_plan_waits_for_is_told_from_disk_too(tmp_path: Path) -> None:
    """And with the content there is a plan for that content alone."""
    graph = graph_of("(float[4, 6] x, int64[2] shape) => (float[A, B] y) { y = Reshape(x, shape) }")
    types, values = tuple(static_types(graph).values()), {1: np.array([3, 8])}
    for k in range(2):
        known = opened_anew(tmp_path)
        with pytest.raises(UnknownValueError) as error:
            template(
                known,
                graph,
                types,
                LIMITS,
                {},
                (),
                never if k else lambda: make_template(graph, types, LIMITS, rewrite),
            )
        assert error.value.operand == "shape"
        made = make_template(graph, types, LIMITS, rewrite, values)
        plan = template(known, graph, types, LIMITS, values, (), never if k else lambda made=made: made)  # type: ignore[misc]
        assert_same(plan, made)
        known.save()


def test_a_size_that_follows_from_a_function_of_one_row_is_not_kept(tmp_path: Path) -> None:
    graph = graph_of(
        "(float[1, 2, H, W] x) => (float[1, 2, A, B] y) <float[4] scales = {1.0, 1.0, 1.7, 2.0}> { y = "
        "Resize(x, , scales) }"
    )
    types = (tensor(1, 2, 5, 7),)
    made = make_template(graph, types, LIMITS, rewrite)
    with pytest.raises(TypeError, match="follows from"):
        to_data(made)
    known = opened_anew(tmp_path)
    assert template(known, graph, types, LIMITS, {}, (), lambda: made) is made
    known.save()
    assert not known.path.exists()


# ---- what an answer follows from


def with_weights(**changed: np.ndarray[Any, Any]) -> Graph:
    return graph_of(MLP, {**WEIGHTS, **changed})


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("another small constant", {"graph": with_weights(v=2 * np.eye(8, dtype=np.float32))}),
        ("another type of one", {"graph": with_weights(w=WEIGHTS["w"].astype(np.float32)[:, :8] * 0)}),
        ("a size that is fixed", {"graph": graph_of(MLP.replace("N", "5"), WEIGHTS)}),
        ("another limit", {"limits": replace(LIMITS, max_buffers_per_stage=7)}),
        ("another feature", {"limits": replace(LIMITS, features=frozenset({"shader-f16"}))}),
        ("forms that were measured", {"limits": replace(LIMITS, tuned=Tuned({"a": "b"}))}),
        ("another option", {"about": 2}),
    ],
)
def test_another_question_has_another_answer(what: str, changes: dict[str, Any], tmp_path: Path) -> None:
    known = opened_anew(tmp_path)
    asked_for(known, planned)
    made = []
    asked_for(known, lambda: made.append(1) or planned(changes.get("graph"), changes.get("limits", LIMITS)), **changes)  # type: ignore[func-returns-value]
    assert made == [1], what


def test_another_adapter_version_or_library_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_plans: None
) -> None:
    made = []

    def counted() -> Template:
        made.append(1)
        return planned()

    for code, expected in (("an adapter", 1), ("an adapter", 1), ("another", 2)):
        asked_for(opened_anew(tmp_path, code), counted)
        assert len(made) == expected
    monkeypatch.setattr(module, "libraries", lambda: ("onnx", "2.0"))
    asked_for(opened_anew(tmp_path), counted)
    assert len(made) == 3


def test_a_large_weight_counts_by_its_zeros(tmp_path: Path) -> None:
    """Its content is not in the cache, and not asked for."""
    rng = np.random.default_rng()
    dense = rng.standard_normal((512, 256)).astype(np.float32)
    sparse = np.where(rng.random(dense.shape) < 0.1, dense, 0).astype(np.float32)

    def graph(weight: np.ndarray[Any, Any]) -> Graph:
        return graph_of("(float[4, 512] x) => (float[4, 256] y) { y = MatMul(x, w) }", {"w": weight})

    digests = [graph_digest(graph(w), 1 << 16, False) for w in (dense, -dense, sparse, sparse * 2)]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    partitioned(tmp_path, graph(dense))
    known, types = opened_anew(tmp_path), (tensor(4, 512),)
    template(known, graph(dense), types, LIMITS, {}, (), lambda: make_template(graph(dense), types, LIMITS, rewrite))
    known.save()
    assert len(answers(known.path)) == 2
    assert known.path.stat().st_size < 20_000


def test_a_large_constant_that_the_partitioner_read_counts_by_its_content(tmp_path: Path) -> None:
    """Codes of compressed weights are looked through: one that names no value leaves the node to the CPU."""
    model, _ = model_of("Gemm", "Codebook8", (3, 515), (200, 515), (0, 1), transB=1)
    codes = constant(model, "codes") % 100
    replaced(model, "values", np.linspace(-1, 1, 100, dtype=np.float32))
    spoiled = codes.copy()
    spoiled[7, 0] = 250
    for k in range(2):
        found = []
        for array in (codes, spoiled, codes):
            replaced(model, "codes", array)
            graph = from_onnx(model)
            found.append(partitioned(tmp_path, graph))
            assert found[-1] == decide(graph, CONFIG, LIMITS, False), k
        assert found[0] == found[2] != found[1]


def test_where_the_gpu_is_expected_to_win_its_own_session_finds_a_partitioning(tmp_path: Path) -> None:
    """The process that finds out where a model runs best makes another one than the process that then runs it."""
    graph, auto = graph_of(MLP.replace("N", "5"), WEIGHTS), Config(placement="auto", adapter="0")
    for seconds, count in ((1.0, 2), (1e-9, 1)):
        costs = Costs(cpu_s={(node.id, node.op): seconds for node in graph.nodes})
        cache, gpu = tmp_path / str(count), replace(auto, placement="gpu")
        assert partitioned(cache, graph, auto, costs) == decide(graph, auto, LIMITS, False, costs)
        assert len(answers(only_file(cache))) == count
        assert partitioned(cache, graph, gpu) == decide(graph, gpu, LIMITS, False)
        assert len(answers(only_file(cache))) == 2


def test_what_is_planted_or_forced_is_not_kept(tmp_path: Path) -> None:
    known = opened_anew(tmp_path)
    with apart():
        asked_for(known, planned)
    with forced("gemm"):
        asked_for(known, planned)
    assert not known.path.exists()
    asked_for(known, planned)
    with apart(), pytest.raises(AssertionError, match="it was there"):
        asked_for(known, never)


# ---- what lies in the file


HOSTILE: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "no object": lambda data: [data],
    "no rows": lambda data: {k: v for k, v in data.items() if k != "rows"},
    "empty rows": lambda data: {**data, "rows": []},
    "a row that is none": lambda data: {**data, "rows": [[99], *data["rows"]]},
    "a row less": lambda data: {**data, "rows": data["rows"][:-1]},
    "a reference forward": lambda data: {**data, "rows": [[*data["rows"][0][:-1], 10**6], *data["rows"][1:]]},
    "atoms without values": lambda data: {**data, "hints": []},
    "an atom of a later one": lambda data: {**data, "atoms": [["//", [[[5], 1]], [[[], 2]]], *data["atoms"][1:]]},
    "an atom that calls": lambda data: {**data, "atoms": [["call", "eval", ["is", 1]], *data["atoms"][1:]]},
    "a text for a size": lambda data: {**data, "guards": [[[[[0], "__import__('os')"]], "==", True]]},
    "a guard on no size": lambda data: {**data, "guards": [[[[[], 1]], "==", True]]},
    "a guard that does not hold": lambda data: {**data, "guards": [[[[[0], 1]], "==", True]]},
    "a guard of no answer": lambda data: {**data, "guards": [[[[[0], 1]], "==", 1]]},
    "nested": lambda data: {**data, "atoms": json.loads("[" * 900 + "]" * 900)},
    "another shader": lambda data: json.loads(
        json.dumps(data)
        .replace("gemm.wgsl", "../gemm.wgsl")
        .replace("matvec.wgsl", "../x.wgsl")
        .replace("softmax.wgsl", "/etc/passwd")
    ),
    "another element type": lambda data: json.loads(json.dumps(data).replace('"float32"', '"float31"')),
    "another kind of place": lambda data: json.loads(json.dumps(data).replace('"slot"', '"heap"')),
    "a weight that is none": lambda data: json.loads(
        json.dumps(data).replace('["w"', '["q"', 1).replace('"w"]', '"q"]', 1)
    ),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_an_answer_with_the_right_seal_that_no_process_wrote(how: str, tmp_path: Path) -> None:
    asked_for(opened_anew(tmp_path), planned)
    path = only_file(tmp_path)
    (before,) = answers(path)
    changed = HOSTILE[how](copy.deepcopy(before))
    assert changed != before, "the change finds what it changes"
    change_answer(path, changed)
    made = []
    plan = asked_for(opened_anew(tmp_path), lambda: made.append(1) or planned())  # type: ignore[func-returns-value]
    assert made == [1]
    assert_same(plan, planned())
    assert answers(path) == [before], "it is written anew"


def mutated(value: Any, rng: random.Random) -> Any:
    """JSON with one place changed."""
    if isinstance(value, (list, dict)) and value and rng.random() < 0.97:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        found = copy.copy(value)
        found[key] = mutated(value[key], rng)
        return found
    return rng.choice(
        [
            0,
            1,
            -1,
            3,
            1 << 31,
            1 << 62,
            1.5,
            True,
            None,
            "",
            "w",
            "input",
            "float32",
            [],
            [value],
            {},
            {"size": [], "hint": 0},
            {"float": "nan"},
        ]
    )


def test_mutations_are_refused_or_are_legal_plans() -> None:
    """No other exception than those that stand for a file that can't be used."""
    data, rng, refused = to_data(planned()), random.Random(11), 0
    for _ in range(600):
        try:
            found = from_data(json.loads(json.dumps(mutated(data, rng))), TYPES, LIMITS, {})
        except (ValueError, LookupError, TypeError, AttributeError):
            refused += 1
            continue
        filled = found.fill(TYPES, {})
        assert filled is not None
        assert violations(found.at(filled)) == []
    assert refused > 300


def test_a_partitioning_of_other_nodes_is_refused(tmp_path: Path) -> None:
    graph = graph_of(MLP, WEIGHTS)
    made = partitioned(tmp_path, graph)
    path = only_file(tmp_path)
    (data,) = answers(path)
    for groups in ([[7]], [[0, 0]], [[0], [0]], [[]], [["0"]]):
        changed = copy.deepcopy(data)
        changed["rows"][-1][1] = groups
        change_answer(path, changed)
        assert partitioned(tmp_path, graph) == made
        assert answers(path) == [data], "it is written anew"
    change_answer(path, {**data, "contents": {"w": "0"}})
    assert partitioned(tmp_path, graph) == made
    change_answer(path, {**data, "contents": {"nothing": "0"}})
    assert partitioned(tmp_path, graph) == made
