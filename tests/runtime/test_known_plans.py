"""Plans and partitionings on disk: what is read is what would be made, and what lies in the folder can't do harm."""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from models import build
from ort_gpu_ep import store
from ort_gpu_ep.config import Config
from ort_gpu_ep.files import PRIVATE_FILE
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
from ort_gpu_ep.runtime.known_plans import FORMAT, KnownPlans
from ort_gpu_ep.scheduler.kept import from_data, to_data
from ort_gpu_ep.scheduler.template import Template, make_template
from ort_gpu_ep.scheduler.verify import violations
from tests.compressed.test_functions import constant, model_of, replaced
from tests.direct import opened
from tests.unit.graphs import graph_of, random_models, static_types, tensor

LIMITS = Limits()
NAMES = ["lenet5", "har_lstm", "encoder", "shufflenet", "squeezenet1_1", "unet"]
MLP = "(float[N, 16] x) => (float[N, 8] y) { h = MatMul(x, w)  s = Softmax(h)  y = MatMul(s, v) }"
WEIGHTS = {"w": np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8), "v": np.eye(8, dtype=np.float32)}
TYPES = (tensor(5, 16),)
CONFIG = Config(placement="gpu")


def never() -> Any:
    raise AssertionError("it was there")


def asked_for(
    kept: KnownPlans,
    make: Callable[[], Template],
    graph: Graph | None = None,
    limits: Limits = LIMITS,
    about: object = 1,
) -> Template:
    return kept.template(graph or graph_of(MLP, WEIGHTS), TYPES, limits, {}, (about,), make)


def planned(graph: Graph | None = None, limits: Limits = LIMITS) -> Template:
    return make_template(graph or graph_of(MLP, WEIGHTS), TYPES, limits, rewrite)


def only_file(folder: Path) -> Path:
    (found,) = (folder / "plans").iterdir()
    return found


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
        KnownPlans(str(tmp_path), "code").template(given_graph, types, LIMITS, {}, (), lambda made=made: made)  # type: ignore[misc]
        again = KnownPlans(str(tmp_path), "code").template(given_graph, types, LIMITS, {}, (), never)
        assert_same(again, made, tuple(TensorType(t.dtype, tuple(2 * d for d in t.shape)) for t in types))
    found = decide(graph, CONFIG, LIMITS, False)
    for make_or_read in range(2):
        kept = KnownPlans(str(tmp_path), "code")
        assert partition(kept, graph, CONFIG, LIMITS, False, None, {}, False) == found, make_or_read


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
        kept = KnownPlans(str(tmp_path), "code")
        with pytest.raises(UnknownValueError) as error:
            kept.template(
                graph, types, LIMITS, {}, (), never if k else lambda: make_template(graph, types, LIMITS, rewrite)
            )
        assert error.value.operand == "shape"
        made = make_template(graph, types, LIMITS, rewrite, values)
        assert_same(kept.template(graph, types, LIMITS, values, (), never if k else lambda made=made: made), made)  # type: ignore[misc]


def test_a_size_that_follows_from_a_function_of_one_row_is_not_kept(tmp_path: Path) -> None:
    graph = graph_of(
        "(float[1, 2, H, W] x) => (float[1, 2, A, B] y) <float[4] scales = {1.0, 1.0, 1.7, 2.0}> { y = "
        "Resize(x, , scales) }"
    )
    types = (tensor(1, 2, 5, 7),)
    made = make_template(graph, types, LIMITS, rewrite)
    with pytest.raises(TypeError, match="follows from"):
        to_data(made)
    kept = KnownPlans(str(tmp_path), "code")
    assert kept.template(graph, types, LIMITS, {}, (), lambda: made) is made
    assert not kept.folder.exists()


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
    kept = KnownPlans(str(tmp_path), "code")
    asked_for(kept, planned)
    made = []
    asked_for(kept, lambda: made.append(1) or planned(changes.get("graph"), changes.get("limits", LIMITS)), **changes)  # type: ignore[func-returns-value]
    assert made == [1], what


def test_another_adapter_version_or_library_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_plans: None
) -> None:
    made = []

    def counted() -> Template:
        made.append(1)
        return planned()

    for code, expected in (("an adapter", 1), ("an adapter", 1), ("another", 2)):
        asked_for(KnownPlans(str(tmp_path), code), counted)
        assert len(made) == expected
    monkeypatch.setattr(module, "libraries", lambda: ("onnx", "2.0"))
    asked_for(KnownPlans(str(tmp_path), "an adapter"), counted)
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
    kept = KnownPlans(str(tmp_path), "code")
    partition(kept, graph(dense), CONFIG, LIMITS, False, None, {}, False)
    kept.template(
        graph(dense),
        (tensor(4, 512),),
        LIMITS,
        {},
        (),
        lambda: make_template(graph(dense), (tensor(4, 512),), LIMITS, rewrite),
    )
    assert len([*kept.folder.iterdir()]) == 2
    assert sum(f.stat().st_size for f in kept.folder.iterdir()) < 20_000


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
            found.append(partition(KnownPlans(str(tmp_path), "code"), graph, CONFIG, LIMITS, False, None, {}, False))
            assert found[-1] == decide(graph, CONFIG, LIMITS, False), k
        assert found[0] == found[2] != found[1]


def test_where_the_gpu_is_expected_to_win_its_own_session_finds_a_partitioning(tmp_path: Path) -> None:
    """The process that finds out where a model runs best makes another one than the process that then runs it."""
    graph, auto = graph_of(MLP.replace("N", "5"), WEIGHTS), Config(placement="auto", adapter="0")
    for seconds, files in ((1.0, 2), (1e-9, 1)):
        costs = Costs(cpu_s={(node.id, node.op): seconds for node in graph.nodes})
        kept = KnownPlans(str(tmp_path / str(files)), "code")
        assert partition(kept, graph, auto, LIMITS, False, costs, {}, False) == decide(
            graph, auto, LIMITS, False, costs
        )
        assert len([*kept.folder.iterdir()]) == files
        gpu = replace(auto, placement="gpu")
        assert partition(kept, graph, gpu, LIMITS, False, None, {}, False) == decide(graph, gpu, LIMITS, False)
        assert len([*kept.folder.iterdir()]) == 2


def test_what_is_planted_or_forced_is_not_kept(tmp_path: Path) -> None:
    kept = KnownPlans(str(tmp_path), "code")
    with apart():
        asked_for(kept, planned)
    with forced("gemm"):
        asked_for(kept, planned)
    assert not kept.folder.exists()
    asked_for(kept, planned)
    with apart(), pytest.raises(AssertionError, match="it was there"):
        asked_for(kept, never)


# ---- what lies in the folder


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    _, _, content = data.partition(b"\n")
    match how:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(data[:-1])
        case "longer":
            path.write_bytes(data + b" ")
        case "a byte":
            path.write_bytes(data.replace(b"input", b"inpul", 1))
        case "another seal":
            path.write_bytes(b"ort_gpu_ep plan 0" + data[len(b"ort_gpu_ep plan 0") :])
        case "no seal":
            path.write_bytes(content)
        case "bytes":
            path.write_bytes(random.Random(5).randbytes(5000))
        case "a folder":
            path.unlink()
            path.mkdir()
        case "a link":
            target = path.with_suffix(".elsewhere")
            path.rename(target)
            path.symlink_to(target)
        case "a pipe":
            path.unlink()
            os.mkfifo(path)
        case "writable by others":
            path.chmod(0o666)


@pytest.mark.skipif(os.name != "posix", reason="links, pipes and modes are POSIX's")
@pytest.mark.parametrize(
    "how",
    [
        "empty",
        "cut",
        "longer",
        "a byte",
        "another seal",
        "no seal",
        "bytes",
        "a folder",
        "a link",
        "a pipe",
        "writable by others",
    ],
)
def test_a_file_that_is_not_as_it_was_written_is_made_anew(how: str, tmp_path: Path) -> None:
    asked_for(KnownPlans(str(tmp_path), "code"), planned)
    path = only_file(tmp_path)
    damaged(path, how)
    made = []
    found = asked_for(KnownPlans(str(tmp_path), "code"), lambda: made.append(1) or planned())  # type: ignore[func-returns-value]
    assert made == [1]
    assert_same(found, planned())
    if how != "a folder":  # which nothing replaces
        assert_same(asked_for(KnownPlans(str(tmp_path), "code"), never), planned())


def sealed(path: Path, data: object) -> None:
    head = path.read_bytes().partition(b"\n")[0].decode()
    store.write_sealed(path, head.rpartition(" ")[0], json.dumps(data).encode())


def content_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes().partition(b"\n")[2]))


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
def test_a_file_with_the_right_seal_that_no_process_wrote(how: str, tmp_path: Path) -> None:
    asked_for(KnownPlans(str(tmp_path), "code"), planned)
    path = only_file(tmp_path)
    before = content_of(path)
    changed = HOSTILE[how](copy.deepcopy(before))
    assert changed != before, "the change finds what it changes"
    sealed(path, changed)
    made = []
    found = asked_for(KnownPlans(str(tmp_path), "code"), lambda: made.append(1) or planned())  # type: ignore[func-returns-value]
    assert made == [1]
    assert_same(found, planned())


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

    def ask() -> Partitioning:
        return partition(KnownPlans(str(tmp_path), "code"), graph, CONFIG, LIMITS, False, None, {}, False)

    found = ask()
    path = only_file(tmp_path)
    data = content_of(path)
    for groups in ([[7]], [[0, 0]], [[0], [0]], [[]], [["0"]]):
        changed = copy.deepcopy(data)
        changed["rows"][-1][1] = groups
        sealed(path, changed)
        assert ask() == found
        assert content_of(path) == data, "it is written anew"
    sealed(path, {**data, "contents": {"w": "0"}})
    assert ask() == found
    sealed(path, {**data, "contents": {"nothing": "0"}})
    assert ask() == found


# ---- the folder


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_plans: None) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 2)
    monkeypatch.setattr(module, "MAX_FILES", 8)
    made = planned()
    kept = KnownPlans(str(tmp_path), "code")
    (tmp_path / "plans").mkdir()
    left = tmp_path / "plans" / "killed.part"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    for k in range(20):
        asked_for(kept, lambda: made, about=k)
        assert len([*kept.folder.iterdir()]) <= 8 + 2
    assert not left.exists()
    monkeypatch.setattr(module, "MAX_FILES", 10**6)
    monkeypatch.setattr(module, "MAX_NBYTES", 8000)
    kept = KnownPlans(str(tmp_path), "code")
    for k in range(20, 30):
        asked_for(kept, lambda: made, about=k)
    largest = max(f.stat().st_size for f in kept.folder.iterdir())
    assert sum(f.stat().st_size for f in kept.folder.iterdir()) <= 8000 + 2 * largest
    monkeypatch.setattr(module, "MAX_FILE_NBYTES", 100)
    kept = KnownPlans(str(tmp_path), "code")
    count = len([*kept.folder.iterdir()])
    asked_for(kept, lambda: made, about="large")
    assert len([*kept.folder.iterdir()]) == count


def test_many_write_and_remove_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_plans: None) -> None:
    """Each with an object of its own, as other processes have."""
    monkeypatch.setattr(module, "LOOK_EVERY", 2)
    monkeypatch.setattr(module, "MAX_FILES", 5)
    made = [planned(with_weights(v=np.full((8, 8), k, np.float32))) for k in range(8)]
    graphs = [with_weights(v=np.full((8, 8), k, np.float32)) for k in range(8)]
    wrong = list[object]()

    def work(seed: int) -> None:
        kept, rng = KnownPlans(str(tmp_path), "code"), random.Random(seed)
        try:
            for k in (rng.randrange(8) for _ in range(25)):
                if to_data(asked_for(kept, lambda k=k: made[k], graphs[k])) != to_data(made[k]):  # type: ignore[misc]
                    wrong.append(k)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(f.suffix == ".json" for f in (tmp_path / "plans").iterdir())


def test_a_folder_that_can_not_be_written_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_plans: None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    calls = []

    def full(path: Path, data: bytes) -> None:
        calls.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = KnownPlans(str(tmp_path / "file"), "code")
    with caplog.at_level("INFO", "ort_gpu_ep"):
        for k in range(3):
            assert_same(asked_for(kept, planned, about=k), planned())
    assert len([r for r in caplog.records if "can't be written" in r.message]) == 1
    monkeypatch.setattr(store, "replace", full)
    kept = KnownPlans(str(tmp_path / "full"), "code")
    for k in range(3):
        assert_same(asked_for(kept, planned, about=k), planned())
    assert len(calls) == 1, "it is not tried for each plan"


def test_the_seal_has_the_format_and_the_key(tmp_path: Path) -> None:
    asked_for(KnownPlans(str(tmp_path), "code"), planned)
    path = only_file(tmp_path)
    head = path.read_bytes().partition(b"\n")[0].decode()
    assert head.startswith(f"{FORMAT} {path.stem}")
    assert os.name != "posix" or path.stat().st_mode & 0o777 == PRIVATE_FILE
