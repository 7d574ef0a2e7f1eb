"""Probes that wait for a model that wants them: which run for which model, and what a verdict then says; workers are
stood in for but once."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import models
import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from benchmarks import replay
from ort_gpu_ep.calibration import cache
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import AdapterInfo, Gpu
from ort_gpu_ep.errors import Code
from ort_gpu_ep.files import fingerprint
from ort_gpu_ep.health import examination, markers, open_adapter, verdicts
from ort_gpu_ep.health.examination import Outcome
from ort_gpu_ep.health.open_adapter import Uses, everything
from ort_gpu_ep.health.probe import PROBES, late
from ort_gpu_ep.health.verdicts import Verdict
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.model_file import op_types
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.kernels.target import MATRIX_UNITS, SUBNORMAL_HALVES
from ort_gpu_ep.partitioner import partition
from ort_gpu_ep.placement.decisions import Decisions, Learnt, key_of, speed_options
from ort_gpu_ep.placement.source import Source
from ort_gpu_ep.runtime import artefact
from ort_gpu_ep.session import InferenceSession, early, opening, scout, starting
from tests.unit.graphs import graph_of, model_of

HARDWARE = AdapterInfo(0, "a GPU", "discrete", "Vulkan", "1.0", 1, 2)
ALWAYS = {p.name for p in PROBES.values() if p.quick}
LATE = {p.name for p in PROBES.values() if p.ops}
VECTORS = {"matrix times vector", "matrix times vector, rows by fours", "matrix times vector, columns by fours"}
SHOWING = {"matrix units", "matrix units of attention", "matrix units of bytes", "subnormal float16"}
WINDOWS = {"rows of weights", "Winograd's convolution"}
GROUPS = {"depthwise, channels last", "several groups, channels last"}


def a_model(*ops: str) -> Uses:
    return lambda device: ops


@dataclass
class Workers:
    """What stands in for the processes that probe. ran: the names of each look. statuses: of probes that do not pass.
    checked: of those that pass with bounds checks only. meanwhile: what happens while they run.
    """

    ran: list[set[str]] = field(default_factory=list)
    statuses: dict[str, str] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    meanwhile: Callable[[], object] = lambda: None

    def examine(self, index: int, names: Sequence[str], *given: Any, **named: Any) -> list[Outcome]:
        self.ran.append({*names})
        self.meanwhile()
        return [self._outcome(name) for name in names]

    def _outcome(self, name: str) -> Outcome:
        status: Any = self.statuses.get(name, "PASS")
        fails = status not in ("PASS", "UNSUPPORTED")
        return Outcome(
            name,
            "kernels",
            status,
            "as told",
            1.0,
            PROBES[name].disables if fails else (),
            not fails and name not in self.checked,
        )


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    found = Workers()
    monkeypatch.setattr(examination, "examine", found.examine)
    monkeypatch.setattr(examination, "examine_at_once", found.examine)
    return found


@pytest.fixture
def look(workers: Workers, tmp_path: Path) -> Callable[..., Verdict]:
    """The verdict as a new process has it that opens the adapter for a model."""
    return lambda uses: open_adapter._verdict(HARDWARE, "k", str(tmp_path), uses)


def names_of(verdict: Verdict) -> set[str]:
    return {name for name, _ in verdict.late}


# ---- which probes run


@pytest.mark.parametrize(
    ("ops", "wanted"),
    [
        (("Conv", "Relu", "MaxPool", "Concat", "GlobalAveragePool", "Softmax"), WINDOWS | SHOWING | {"pool"}),
        (("MatMul", "Add", "Softmax", "LayerNormalization"), VECTORS | SHOWING),
        (("LSTM",), VECTORS | SHOWING | {"recurrent layers in registers", "recurrent layers, a dispatch a step"}),
        (("Conv", "Conv of groups"), WINDOWS | SHOWING | GROUPS),
        (("ConvTranspose",), SHOWING | {"sums of other places"}),
        (("Relu", "Transpose"), set()),
        (("resize.wgsl",), {"pool"}),
        (("packed_matvec.wgsl",), VECTORS),
        (("conv_direct.wgsl",), GROUPS | {"Winograd's convolution"}),
        (("winograd_input.wgsl",), {"Winograd's convolution"}),
    ],
)
def test_a_first_use_runs_what_the_model_wants(
    ops: tuple[str, ...], wanted: set[str], look: Any, workers: Workers
) -> None:
    found = look(a_model(*ops))
    assert workers.ran == [ALWAYS | wanted]
    assert names_of(found) == LATE - wanted


def test_of_a_model_of_which_nothing_is_known_all_run(look: Any, workers: Workers) -> None:
    found = look(everything)
    assert workers.ran == [ALWAYS | LATE]
    assert found.late == ()
    assert set(found.unchecked) == {
        file for file, record in RECORDS.items() if record.family in found.trusted and not record.data_indices
    }


def test_on_software_nothing_waits(workers: Workers, tmp_path: Path) -> None:
    found = open_adapter._verdict(replace(HARDWARE, type="software"), "k", str(tmp_path), a_model("Relu"))
    assert (workers.ran, found.late) == ([ALWAYS], ())


def test_a_second_model_runs_only_what_is_missing(
    look: Any, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """Two groups wait, one is wanted; then none is left of it, and the other one goes on waiting."""
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        first = look(a_model("Conv"))
    assert f"probes that wait for another model: {len(first.late)}" in caplog.text
    second = look(a_model("MaxPool", "Conv"))
    assert workers.ran[1:] == [{"pool"}]
    assert names_of(second) == names_of(first) - {"pool"} > VECTORS
    assert look(a_model("MaxPool", "Conv")) == second
    assert len(workers.ran) == 2
    look(a_model("Gemm"))
    assert workers.ran[2:] == [VECTORS]
    assert names_of(look(everything)) == set()
    assert workers.ran[3] == LATE - SHOWING - WINDOWS - VECTORS - {"pool"}


def test_files_of_probes_that_wait_keep_their_checks(look: Any) -> None:
    """Also those of a family that no other probe stands for, and that none is about: all of its probes have to pass."""
    files = [
        set(look(uses).unchecked)
        for uses in (a_model("Relu"), a_model("Conv"), a_model("MatMul"), a_model("conv_direct.wgsl"))
    ]
    assert files[0] < files[1] < files[2] < files[3]
    assert {"elementwise.wgsl", "gemm.wgsl", "sum_parts.wgsl", "softmax.wgsl", "strided.wgsl", "concat.wgsl"} <= files[
        0
    ]
    waiting = {
        "winograd_input.wgsl",
        "pack_rows.wgsl",
        "matrix_product.wgsl",
        "matvec.wgsl",
        "packed_matvec.wgsl",
        "pool.wgsl",
        "conv_direct.wgsl",
    }
    assert not waiting & files[0]
    assert waiting & files[1] == {"winograd_input.wgsl", "pack_rows.wgsl", "matrix_product.wgsl"}
    assert waiting & (files[2] - files[1]) == {"matvec.wgsl", "packed_matvec.wgsl"}
    assert waiting & (files[3] - files[2]) == {"conv_direct.wgsl"}


def test_what_a_late_probe_shows_is_there(look: Any, workers: Workers) -> None:
    assert MATRIX_UNITS not in look(a_model("Relu")).shown
    workers.statuses["matrix units"] = "UNSUPPORTED"
    found = look(a_model("Conv"))
    assert SUBNORMAL_HALVES in found.shown
    assert "last-arriving-workgroup" in found.shown
    assert names_of(found).isdisjoint(SHOWING)


# ---- what they find is added


def test_what_was_found_before_stays(look: Any, workers: Workers, tmp_path: Path) -> None:
    workers.statuses["softmax"] = "FAIL"
    first = look(a_model("Relu"))
    verdicts.write(str(tmp_path), "k", replace(first, strikes=2))
    workers.statuses = {"pool": "CRASH"}
    found = look(a_model("MaxPool"))
    assert {what for what, _ in found.disabled} == {"softmax.wgsl", "pool.wgsl"}
    assert (found.strikes, found.trusted, found.doubtful) == (
        2,
        ("elementwise", "movement", "product"),
        ("pool", "reduction"),
    )
    assert verdicts.read(str(tmp_path), "k") == found


def test_a_late_probe_takes_trust_from_its_whole_family(look: Any, workers: Workers) -> None:
    assert "strided.wgsl" in look(a_model("Relu")).unchecked
    workers.checked = {"rows of weights"}
    found = look(a_model("Conv"))
    assert "movement" in found.doubtful
    assert not {"strided.wgsl", "concat.wgsl", "pack_rows.wgsl"} & {*found.unchecked}
    assert found.disabled == ()
    workers.checked = set()
    assert "movement" not in look(everything).trusted, "one that passes does not give it back"


def test_what_another_process_finds_meanwhile_is_kept(look: Any, workers: Workers, tmp_path: Path) -> None:
    look(a_model("Relu"))

    def another() -> None:
        workers.meanwhile, workers.statuses = (lambda: None), {"matrix times vector": "FAIL"}
        look(a_model("MatMul"))
        workers.statuses = {}

    workers.meanwhile = another
    found = look(a_model("MaxPool"))
    assert workers.ran[1:] == [{"pool"}, VECTORS | SHOWING]
    assert "matvec.wgsl" in {what for what, _ in found.disabled}
    assert names_of(found) == LATE - VECTORS - SHOWING - {"pool"}
    assert (found.doubtful, "pool" in found.trusted) == (("elementwise", "matvec"), True)
    assert verdicts.read(str(tmp_path), "k") == found


def test_two_that_keep_a_verdict_at_a_time_lose_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each reads what is there and writes it with its own; neither comes in between (a lock of a file keeps threads
    apart, too)."""
    first = Verdict(late=tuple((name, ("Op",)) for name in "abcd"))
    verdicts.write(str(tmp_path), "k", first)
    read = verdicts.read

    def slowly(*given: Any) -> Any:
        found = read(*given)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(verdicts, "read", slowly)
    own = [replace(first, late=tuple(entry for entry in first.late if entry[0] != name)) for name in "abcd"]
    threads = [threading.Thread(target=verdicts.keep, args=(str(tmp_path), "k", found, first)) for found in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(str(tmp_path), "k")
    assert found is not None
    assert found.late == ()


def test_after_an_unclean_exit_what_ran_before_runs_again(look: Any, workers: Workers, tmp_path: Path) -> None:
    first = look(a_model("MaxPool"))
    (tmp_path / "health" / "k.1-0.open").write_text(json.dumps({"pid": 2**22 + 1, "left": 0}))
    found = look(a_model("Relu"))
    assert workers.ran[1:] == [ALWAYS | {"pool"}]
    assert (found.late, found.strikes) == (first.late, 1)


def test_what_there_is_no_time_for_is_tried_once_more(look: Any, workers: Workers) -> None:
    workers.statuses = {"pool": "NOT_RUN"}
    first = look(a_model("MaxPool"))
    assert "pool" in names_of(first)
    assert not first.complete
    second = look(a_model("MaxPool"))
    assert workers.ran == [ALWAYS | {"pool"}] * 2
    assert second.complete
    assert names_of(second) == LATE - {"pool"}
    look(a_model("MaxPool"))
    assert len(workers.ran) == 2


def test_where_no_process_can_be_started_they_wait_on(look: Any, workers: Workers) -> None:
    def none() -> None:
        raise OSError("no process")

    first = look(a_model("Relu"))
    workers.meanwhile = none
    assert look(a_model("MaxPool")) == first


@pytest.mark.parametrize(
    "bad",
    [
        {},
        "pool",
        None,
        1,
        [1],
        [["pool"]],
        [["pool", "MaxPool"]],
        [["pool", [1]]],
        [[1, ["MaxPool"]]],
        [["pool", ["MaxPool"], 3]],
        [{"pool": []}],
    ],
)
def test_a_verdict_whose_late_probes_are_none_is_refused(bad: object, look: Any, tmp_path: Path) -> None:
    """So that no file with other contents keeps probes from running; likewise one of an older format, which has
    none."""
    found = look(a_model("Relu"))
    path = tmp_path / "health" / "k.json"
    whole = json.loads(path.read_text())
    assert verdicts.read(str(tmp_path), "k") == found
    path.write_text(json.dumps({**whole, "late": bad}))
    assert verdicts.read(str(tmp_path), "k") is None
    del whole["late"]
    path.write_text(json.dumps(whole))
    assert verdicts.read(str(tmp_path), "k") is None


# ---- sessions


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter of the tests as if it were no software, in this process; nothing is known of it."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", gpu.limits)
    monkeypatch.setattr(gpu, "trusted", frozenset())
    monkeypatch.setattr(AdapterInfo, "is_software", False)
    monkeypatch.setattr(open_adapter, "_known", {})
    yield gpu
    markers.remove_mine()


def test_one_process_asks_for_more_with_each_model(hardware: Gpu, workers: Workers, tmp_path: Path) -> None:
    """What asks without a model has what there is; the device that is open gets what a later model wants."""
    config = Config(cache_dir=str(tmp_path))
    assert open_adapter.open_gpu(config, a_model("Relu")) is hardware
    assert "elementwise.wgsl" in hardware.trusted
    assert SUBNORMAL_HALVES not in hardware.limits.features
    open_adapter.open_gpu(config)
    assert workers.ran == [ALWAYS]
    workers.checked = {"rows of weights"}
    open_adapter.open_gpu(config, a_model("MaxPool", "Conv"))
    assert workers.ran[1:] == [SHOWING | WINDOWS | {"pool"}]
    assert SUBNORMAL_HALVES in hardware.limits.features
    assert "pool.wgsl" in hardware.trusted
    assert "strided.wgsl" not in hardware.trusted, "trust that is lost"
    opening.look_for_gpu(replace(config, placement="gpu"))
    assert set().union(*workers.ran) == ALWAYS | LATE


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"placement": "gpu"}, {"pool"}),
        ({"placement": "auto", "strict": "1", "adapter": "0"}, {"pool"}),
        ({"placement": "gpu", "tune": "1"}, LATE),
    ],
)
def test_a_session_that_waits_for_the_device_wants_no_more(
    options: dict[str, str],
    wanted: set[str],
    hardware: Gpu,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """But where it measures kernels."""
    monkeypatch.setattr(cache, "open_gpu", lambda *given: None)
    model = model_of(
        "(float[1, 3, 8, 8] x) => (float[1, 3, 6, 6] y) { y = MaxPool<kernel_shape = [3, 3]>(x) }"
    ).SerializeToString()
    session = InferenceSession(
        model, provider_options={**options, "cache_dir": str(tmp_path), "isolation": "none", "load": "off"}
    )
    assert session.run(None, {"x": np.ones((1, 3, 8, 8), "f")})[0].shape == (1, 3, 6, 6)
    assert set().union(*workers.ran) == ALWAYS | wanted


def test_a_fault_is_found_when_a_model_comes_that_it_would_hurt(
    hardware: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By real probes, in processes of their own."""
    config = Config(cache_dir=str(tmp_path))
    monkeypatch.setenv("ORT_GPU_EP_DRILL", "wrong@pool")
    assert open_adapter.open_gpu(config, a_model("Relu")).limits.disabled == ()
    found = open_adapter.open_gpu(config, a_model("MaxPool")).limits
    assert [what for what, _ in found.disabled] == ["pool.wgsl"]
    graph = graph_of("(float[1, 3, 8, 8] x) => (float[1, 3, 6, 6] y) { y = MaxPool<kernel_shape = [3, 3]>(x) }")
    (node,) = partition(graph, Config(placement="gpu"), found, False).report.nodes
    assert (node.code, "probe 'pool'" in node.reason) == (Code.DRIVER, True)


def test_a_search_ends_with_the_probes_of_what_was_planned(
    hardware: Gpu,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Op types do not tell that this ConvTranspose takes a kernel that convolutions of groups have to speak for."""
    monkeypatch.setattr(open_adapter, "QUICK_S", open_adapter.QUICK_S)
    monkeypatch.setattr(cache, "open_gpu", lambda *given: None)  # whose families of kernels want all probes
    monkeypatch.setattr(cache, "_known", {})
    model = model_of(
        "(float[1, 3, 9, 9] x, float[3, 2, 3, 3] w) => (float[1, 2, 11, 11] y) { y = ConvTranspose(x, w) }"
    ).SerializeToString()
    feeds = {"x": np.ones((1, 3, 9, 9), "f"), "w": np.ones((3, 2, 3, 3), "f")}
    options = {"adapter": "0", "cache_dir": str(tmp_path), "load": "off", "isolation": "none"}
    answers: queue.Queue[dict[str, Any]] = queue.Queue()
    found = scout._found(
        {"options": options, "settings": {}}, model, feeds, lambda line: answers.put({"cpu_s": 10.0}), answers
    )
    assert found["done"], found
    ran = [ALWAYS | SHOWING | {"sums of other places"}, GROUPS | {"Winograd's convolution"}]
    assert workers.ran == ran
    open_adapter._known.clear()
    begun: list[early.Early | None] = []

    def begin(*given: Any) -> early.Early | None:
        begun.append(early.begin(*given))
        assert begun[-1] is None or begun[-1]._read.wait(300.0), "it opens the device, before the session does"
        return begun[-1]

    monkeypatch.setattr(starting, "begin", begin)
    session = InferenceSession(model, provider_options=options)
    session.run(None, feeds)
    assert session.wait_ready(300.0)
    assert begun != [None]
    assert (len(begun), workers.ran) == (1, ran), "the session that waited asks for nothing more"


def test_a_model_that_wants_more_is_left_to_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config, source = (
        Config(cache_dir=str(tmp_path)),
        Source(model_of("(float[4] x) => (float[4] y) { y = Tanh(x) }").SerializeToString()),
    )
    monkeypatch.setattr(opening, "known_verdict", lambda config: ("k", verdicts.read(config.cache_path, "k")))
    Decisions(config.cache_path, key_of(source.path_or_bytes, "k", None, speed_options(config), source.digest())).save(
        Learnt("gpu", ())
    )
    for waits, decided in (((), True), ((("pool", ("MaxPool",)),), True), ((("a probe", ("Tanh",)),), False)):
        verdicts.write(config.cache_path, "k", Verdict(late=waits))
        assert opening.is_decided(config, source, None, early.uses_of(config, source)) == decided


# ---- what a model has


def test_a_model_tells_its_op_types(tmp_path: Path) -> None:
    """Also those of bodies and functions; a group of one is no group."""
    text = """<ir_version: 10, opset_import: ["": 21, "f": 1]>
        model (bool b, float[1, 4, 8, 8] x, float[4, 4, 3, 3] w, float[4, 1, 3, 3] v) => (float y, float z, float p) {
            y = If(b) <then_branch = one () => (float t) { t = Exp(x) }, else_branch = other () => (float e) { e = LpPool<kernel_shape = [2, 2]>(x) }>
            z = Conv<group = 1>(x, w)
            p = f.g(x)
        }
        <domain: "f", opset_import: ["": 21]> g (x) => (y) { y = Sinh(x) }"""
    import onnx.parser

    data = onnx.parser.parse_model(text).SerializeToString()
    found = op_types(data)
    assert found == {"If", "Exp", "LpPool", "Conv", "g", "Sinh"}
    (tmp_path / "m.onnx").write_bytes(data)
    assert Source(str(tmp_path / "m.onnx")).op_types() == found
    grouped = onnx.parser.parse_model(text.replace("group = 1>(x, w)", "group = 4>(x, v)")).SerializeToString()
    assert op_types(grouped) == found | {"Conv of groups"}
    with pytest.raises(ValueError, match="expected at most"):
        op_types(data[:-3])


def test_behind_a_search_the_rest_is_probed(
    hardware: Gpu, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process of its own, which the next one finds no work for."""
    config = Config(cache_dir=str(tmp_path))
    key = verdicts.key_of(open_adapter.open_gpu(config, a_model("Relu")).info)
    monkeypatch.setattr(starting, "known_verdict", lambda config: (key, verdicts.read(config.cache_path, key)))
    jobs = list[Any]()

    class Process:
        """What stands in for it: it is at work here, says nothing and ends."""

        pid = 0

        def __init__(self, job: Any, variables: None, module: str, listens: bool) -> None:
            assert (module, listens) == (starting.SCOUT, True)
            jobs.append(json.loads(json.dumps(job)))
            open_adapter._known.clear()
            scout._probe_the_rest(job["options"])

        def line(self, timeout_s: float) -> None:
            return None

        def hang_up(self) -> None:
            pass

        def end(self, patience_s: float) -> int:
            return scout.DONE

    monkeypatch.setattr(starting, "Worker", Process)
    monkeypatch.setattr(open_adapter, "QUICK_S", open_adapter.QUICK_S)
    monkeypatch.setattr(scout, "_wait_for_others", lambda cache_dir: None)
    for count in (0, 1, 1):
        starting._probe_the_rest(replace(config, isolation="process" if not count else "none"))
        assert len(jobs) == count
    assert workers.ran == [ALWAYS, LATE]
    found = verdicts.read(str(tmp_path), key)
    assert found is not None
    assert found.late == ()


@pytest.mark.parametrize("gives_way", ["another session waits", "the process ends"])
def test_the_rest_gives_way(
    gives_way: str, hardware: Gpu, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(cache_dir=str(tmp_path))
    key = verdicts.key_of(open_adapter.open_gpu(config, a_model("Relu")).info)
    monkeypatch.setattr(starting, "known_verdict", lambda config: (key, verdicts.read(config.cache_path, key)))
    said, lines = list[str](), iter(range(3))

    class Process:
        """What stands in for one that is long at work."""

        pid = 0

        def __init__(self, *given: object, **named: object) -> None:
            """Begins, and is not over yet."""

        def line(self, timeout_s: float) -> None:
            if next(lines) == 1:
                monkeypatch.setattr(
                    starting,
                    *(("_queue", SimpleNamespace(waits=True)) if "session" in gives_way else ("ending", lambda: True)),
                )
            raise TimeoutError

        def hang_up(self) -> None:
            said.append("hang up")

        def end(self, patience_s: float) -> int:
            said.append("end")
            return -9

    monkeypatch.setattr(starting, "Worker", Process)
    starting._probe_the_rest(config)
    assert said == ["hang up", "end"]
    assert next(lines) == 2


def test_a_known_model_tells_the_shaders_that_it_used(tmp_path: Path) -> None:
    """On that adapter; what is no model file wants everything."""
    config, model = (
        Config(cache_dir=str(tmp_path)),
        model_of("(float[4] x) => (float[4] y) { y = Tanh(x) }").SerializeToString(),
    )
    known = artefact.opened(config.cache_path, artefact.key_of(fingerprint(model), "k", config))
    known.note(artefact.Pipeline("resize.wgsl", "fn main() {}", "n", ((True,), False, 0)))
    known.save()
    del known
    assert early.uses_of(config, Source(model))("k") == {"Tanh", "resize.wgsl"}
    assert early.uses_of(config, Source(model))("other") == {"Tanh"}
    assert early.uses_of(config, Source(b"no model"))("k") is None
    assert early.uses_of(replace(config, isolation="process"), Source(model))("k") is None, "the worker knows no model"


@pytest.mark.parametrize("name", models.BUILDERS)
def test_op_types_tell_the_probes_of_what_is_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kernel a plan has, the probe that is about it is wanted by the model's op types."""
    monkeypatch.setattr(replay, "compose", lambda kernel, bindings, limits: kernel.shader)
    model = models.build(name)
    ops, files = (
        op_types(model.SerializeToString()),
        set(replay.kernel_texts(from_onnx(model), {}, replay.LIMITS["h200"])),
    )
    wanted = verdicts.wanted(late(), ops)
    always = {what for p in PROBES.values() if p.quick for what in p.disables}
    missed = {p.name: files & {*p.disables} - always for p in PROBES.values() if p.ops and p.name not in wanted}
    assert {name: found for name, found in missed.items() if found} == {}
