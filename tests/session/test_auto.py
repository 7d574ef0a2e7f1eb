"""placement=auto: what the candidates took decides, for the shapes at hand, and is remembered."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gpu_ep as ort
from ort_gpu_ep.compression import compress
from ort_gpu_ep.errors import DeviceError, WrongResultError
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.placement import chooser, decider, proof, runner
from ort_gpu_ep.placement.decider import LAW, LAW_S, STAY, STAY_S
from ort_gpu_ep.placement.runner import KEEP_S
from tests.patience import Clock
from tests.plugin.cases import info, make_model, node
from tests.session.conftest import NODES, assert_close, gpu_session, on_the_cpu, with_rows
from tests.unit.graphs import model_of

Array = np.ndarray[Any, Any]
CPU = "CPUExecutionProvider"

Open = Callable[..., Any]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Mapping[str, Any]]]:
    """Makes every race, and every run, take these seconds; gives the list of races. The CPU is never too fast to be
    raced."""

    def told(**seconds: float) -> list[Mapping[str, Any]]:
        races: list[Mapping[str, Any]] = []
        clock, answer = Clock(monkeypatch, runner, chooser, tick_s=1e-6), runner.Runner._answer

        def race(
            runs: Mapping[str, Callable[[], object]],
            budget_s: float,
            wake_s: float,
            predicted_s: Mapping[str, float],
            told_s: float,
        ) -> dict[str, float]:
            races.append({name: run() for name, run in runs.items()})
            return {name: seconds[name] for name in runs}

        def answered(self: runner.Runner, candidate: Any, *arguments: Any) -> Any:
            clock.rest(seconds.get(candidate.name, 0.0))
            return answer(self, candidate, *arguments)

        monkeypatch.setattr(proof, "race", race)
        monkeypatch.setattr(runner.Runner, "_answer", answered)
        monkeypatch.setattr(chooser, "_timed", on_a_cpu(seconds.get("cpu", 1e-6)))
        monkeypatch.setattr(chooser, "FLOOR", 0.0)
        return races

    return told


def on_a_cpu(seconds: float) -> Callable[[Any, Any], float]:
    """A run on the CPU before the race, which takes so long."""

    def timed(candidate: Any, feeds: Any) -> float:
        candidate.session.run(None, feeds)
        return seconds

    return timed


def test_it_is_measured(
    auto: Open, slow_on_one_thread: tuple[bytes, Any, dict[str, Array]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race is a real one, whoever wins it on a machine that may be busy: the next run takes the winner, or what is
    as quick."""
    model, settings, feeds = slow_on_one_thread
    races, race = list[Mapping[str, float]](), proof.race

    def raced(*given: Any, **named: Any) -> dict[str, float]:
        races.append(race(*given, **named))
        return dict(races[-1])

    monkeypatch.setattr(proof, "race", raced)
    session, want = auto(model, settings), on_the_cpu(model, feeds)
    assert_close(session.run(None, feeds), want)
    ((shapes, decision),) = session.explain().decisions
    assert (shapes, decision.source) == ("every run", "measured")
    assert set(decision.measured_s) == {"cpu", "gpu"}
    assert set(decision.predicted_s) >= {"cpu", "gpu"}
    (took_s,), (ran,) = races, session.stats()["runs_by_candidate"]
    assert took_s[ran] <= STAY * min(took_s.values()) + STAY_S
    for _ in range(2):
        assert_close(session.run(None, feeds), want)
    assert sum(session.stats()["runs_by_candidate"].values()) == 3


def test_what_the_cpu_does_before_the_gpu_could_answer_is_not_raced(
    auto: Open, mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chooser, "_timed", on_a_cpu(0.9 * chooser.FLOOR * GUESSED.run_s))
    session = auto(mlp)
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert [c.name for c in session.runner.candidates.made] == ["cpu"]
    assert [d.source for _, d in session.explain().decisions] == ["floor"]
    assert session.explain().count("cpu") == NODES
    assert session.stats()["host_to_device"] == 0


@pytest.mark.parametrize(("gpu_s", "clear"), [(1.0, True), (1.5, False), (5.0, False)])
def test_a_gpu_that_has_every_node_and_is_plainly_faster_needs_no_profiles(
    gpu_s: float,
    clear: bool,
    auto: Open,
    timed: Callable[..., Any],
    mlp: bytes,
    x: Array,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the CPU's nodes and of the GPU's kernels are for a cut. No candidate is raced twice."""
    races, asked, profiled = timed(cpu=2.0, gpu=gpu_s), list[bool](), list[bool]()
    monkeypatch.setattr(proof, "node_profile", lambda *given: profiled.append(True) or proof.NodeProfile({}, {}))  # type: ignore[func-returns-value]
    session, want = auto(mlp), on_the_cpu(mlp, {"x": x})
    made = session.runner.chooser
    made.prover.software = False
    made._profile = lambda whole: asked.append(whole) or GUESSED
    assert_close(session.run(None, {"x": x}), want)
    assert (asked, profiled) == (([False], []) if clear else ([False, True], [True]))
    assert [set(race) for race in races] == [{"cpu", "gpu"}]
    ((_, decision),) = session.explain().decisions
    assert (decision.source, decision.candidate) == ("measured", "gpu" if gpu_s < 2.0 else "cpu")
    assert session.explain().count("gpu" if gpu_s < 2.0 else "cpu") == NODES


def test_a_session_made_for_a_comparison_goes_after_it(
    auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array
) -> None:
    """Where all sizes are fixed, none will be compared again: the CPU's copy of the weights would stay for a minute of
    runs."""
    timed(cpu=2.0, gpu=1.0)
    model = with_rows(mlp, len(x))
    session, want = auto(model), on_the_cpu(model, {"x": x})
    session.run(None, {"x": x})
    chooser = session.runner.chooser
    assert chooser.agreed == {"gpu"}
    chooser.agreed.clear()  # as where it was not raced, for want of time
    for entry in chooser.decider.entries.values():
        entry.seen.clear()
    assert_close(session.run(None, {"x": x}), want)
    assert chooser.agreed == {"gpu"}
    assert [c.name for c in session.runner.candidates.made] == ["gpu"]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(
    ("seconds", "candidate"), [({"cpu": 2.0, "gpu": 1.0}, "gpu"), ({"cpu": 1.0, "gpu": 2.0}, "cpu")]
)
def test_the_fastest_stays_and_the_others_go_unless_other_sizes_may_want_them(
    seconds: dict[str, float], candidate: str, fixed: bool, auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array
) -> None:
    races = timed(**seconds)
    model = with_rows(mlp, len(x)) if fixed else mlp
    session, want = auto(model), on_the_cpu(model, {"x": x})
    assert session.get_providers() == [CPU]
    assert_close(session.run(["y"], {"x": x}), want[:1])
    (raced,) = races
    for answer in raced.values():
        assert_close(answer, want)
    assert [c.name for c in session.runner.candidates.made] == ([candidate] if fixed else ["cpu", "gpu"])
    assert session.get_providers() == ([ort.EP_NAME, CPU] if candidate == "gpu" else [CPU])
    assert_close(session.run(None, {"x": x}), want)
    assert session.stats()["runs_by_candidate"] == {candidate: 2}
    assert session.explain().count(candidate) == NODES
    text = str(session.explain())
    assert (
        f"placement for {'every run' if fixed else 'x[5, 16]'}: {candidate}, measured: the fastest of those "
        f"that were run" in text
    )
    assert f"{NODES} of {NODES} nodes measured on the CPU" in text
    assert "predicted" in text
    assert len(races) == 1
    session.runner._tidy(runner.time.perf_counter() + 2 * KEEP_S)  # nobody has used the other one for long
    assert [c.name for c in session.runner.candidates.made] == [candidate]
    assert_close(session.run(None, {"x": x}), want)


def test_a_later_session_begins_with_what_was_decided(
    auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array
) -> None:
    races = timed(cpu=2.0, gpu=1.0)
    auto(mlp).run(None, {"x": x})
    later = auto(mlp)
    assert later.get_providers() == [ort.EP_NAME, CPU]
    assert_close(later.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    ((_, decision),) = later.explain().decisions
    assert (decision.candidate, decision.source, decision.measured_s) == ("gpu", "cached", {"cpu": 2.0, "gpu": 1.0})
    assert len(races) == 1
    assert auto(mlp, checked_shaders=0).get_providers() == [CPU]


def test_new_sizes_are_predicted_and_cost_no_race(
    auto: Open, timed: Callable[..., Any], mlp: bytes, rng: np.random.Generator
) -> None:
    races = timed(cpu=2.0, gpu=1.0)
    session = auto(mlp)
    for rows in (4, 7, 4, 7, 2, 9, 9, 9):
        x = rng.standard_normal((rows, 16)).astype("f")
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert len(races) == 1
    decided = dict(session.explain().decisions)
    assert list(decided) == ["x[4, 16]", "x[7, 16]", "x[2, 16]", "x[9, 16]"]
    assert (decided["x[4, 16]"].source, decided["x[2, 16]"].source) == ("measured", "predicted")
    assert decided["x[2, 16]"].predicted_s["gpu"] > 0.0
    assert decided["x[2, 16]"].why.startswith("the fastest by what ")
    later = auto(mlp)
    x = rng.standard_normal((20, 16)).astype("f")
    assert_close(later.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert len(races) == 1
    assert later.explain().decisions[-1][1].source == "predicted"


def test_the_first_run_of_a_new_size_is_compared_with_the_cpu(
    auto: Open, timed: Callable[..., Any], mlp: bytes, rng: np.random.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    timed(cpu=1e-3, gpu=1e-6)
    session = auto(mlp, faults="corrupt@5")
    first, x = (rng.standard_normal((rows, 16)).astype("f") for rows in (4, 7))
    session.run(None, {"x": first})
    session.run(None, {"x": first})
    assert session.stats()["runs_by_candidate"] == {"gpu": 2}
    with caplog.at_level(logging.WARNING, "ort_gpu_ep"):
        for _ in range(3):
            assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert "the candidate 'gpu' is left out, it fails: WrongResultError" in caplog.text
    assert session.stats()["runs_by_candidate"] == {"gpu": 3, "cpu": 2}


@pytest.mark.parametrize("fixed", [True, False])
def test_an_error_in_get_capability_is_no_measure_of_the_gpu(
    fixed: bool, auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime swallows it and gives all nodes to the CPU."""
    mlp = with_rows(mlp, len(x)) if fixed else mlp
    from ort_gpu_ep.plugin import provider

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    races = timed(cpu=2.0, gpu=1.0)
    monkeypatch.setattr(provider, "partition", fail)
    session = auto(mlp)
    for _ in range(2):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert [list(r) for r in races] == [["cpu"]]
    assert session.stats()["runs_by_candidate"] == {"cpu": 2}
    ((_, decision),) = session.explain().decisions
    assert (decision.candidate, decision.source, set(decision.measured_s)) == ("cpu", "partial", {"cpu"})
    assert "planted" in decision.why
    assert any("planted" in event for event in session.explain().events)
    assert session.explain().count("cpu") == NODES
    assert {n.code for n in session.explain().reports[0].nodes} == {"ERROR"}


def test_runs_that_the_cpu_answers_are_no_measure_of_the_gpu(
    auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gpu_ep.runtime.program import Program
    from ort_gpu_ep.runtime.runs import Steady

    def fail(*_: object) -> None:
        raise DeviceError("the driver said no")

    timed(cpu=0.02, gpu=0.01)
    session = auto(mlp)
    session.run(None, {"x": x})
    measured = [row for row in session.runner.chooser.decider.dump() if row[0] == "gpu"]
    for kind in (Program, Steady):
        monkeypatch.setattr(kind, "run", fail)
    for _ in range(5):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert [row for row in session.runner.chooser.decider.dump() if row[0] == "gpu"] == measured
    # one failed, and it is left out for a second
    assert session.stats()["runs_by_candidate"] == {"gpu": 2, "cpu": 4}
    assert any("the driver said no" in event for event in session.explain().events)


def test_shapes_without_end_are_forgotten_again(
    auto: Open,
    timed: Callable[..., Any],
    mlp: bytes,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(decider, "MAX_SHAPES", 3)
    timed(cpu=1.0, gpu=2.0)
    (tmp_path / "load").write_text("0")
    session = auto(mlp, load=f"file:{tmp_path / 'load'}")
    for rows in (2, 3, 4, 5, 6, 2):
        x = rng.standard_normal((rows, 16)).astype("f")
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert [shapes for shapes, _ in session.explain().decisions] == ["x[5, 16]", "x[6, 16]", "x[2, 16]"]
    assert [len(entry.idle_s) > 1 for entry in session.runner.chooser.decider.entries.values()] == [True] * 3


def test_without_a_budget_it_goes_by_prediction(auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array) -> None:
    races = timed()
    session = auto(mlp, placement_budget_ms=0)
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    ((_, decision),) = session.explain().decisions
    assert (decision.source, decision.candidate, set(decision.measured_s)) == ("predicted", "cpu", {"cpu"})
    assert decision.predicted_s["cpu"] < decision.predicted_s["gpu"]
    assert races == []


def test_a_cut_is_a_candidate(auto: Open, timed: Callable[..., Any], rng: np.random.Generator) -> None:
    """A node that only the CPU has, in the middle, and one that is dear to move."""
    text = (
        "(float[256, 256] x, float[4000000] z) => (float[256, 256] y, float[4000000] e) { y = MatMul(x, w) e = Neg(z) }"
    )
    model = model_of(text, {"w": rng.standard_normal((256, 256)).astype("f")}).SerializeToString()
    feeds = {"x": rng.standard_normal((256, 256)).astype("f"), "z": rng.standard_normal(4000000).astype("f")}
    races = timed(cpu=3.0, gpu=2.0, cut=1.0)
    session = auto(model)
    runner = session.runner
    real = runner.chooser.prover._learn

    def learned(*args: Any) -> None:
        real(*args)
        from dataclasses import replace

        runner.candidates.costs = replace(runner.candidates.costs, cpu_s={(0, "MatMul"): 1.0, (1, "Neg"): 1e-4})

    runner.chooser.prover._learn = learned
    got = session.run(None, feeds)
    for g, w in zip(got, on_the_cpu(model, feeds), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
    assert [list(r) for r in races] == [["cpu", "cut", "gpu"]]
    assert [c.name for c in runner.candidates.made] == ["cut"]
    assert {(n.op, n.device) for n in session.explain().reports[-1].nodes} == {("MatMul", "gpu"), ("Neg", "cpu")}
    assert [p.candidate for p in session.explain().reports[-1].predictions] == ["cut", "gpu", "cpu"]
    later = auto(model)  # makes the same cut of what was stored, at once
    assert len(later.get_providers()) == 2
    got = later.run(None, feeds)
    for g, w in zip(got, on_the_cpu(model, feeds), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
    assert len(races) == 1
    assert later.stats()["runs_by_candidate"] == {"cut": 1}
    assert {(n.op, n.device) for n in later.explain().reports[-1].nodes} == {("MatMul", "gpu"), ("Neg", "cpu")}
    ((_, decision),) = later.explain().decisions
    assert (decision.candidate, decision.source) == ("cut", "cached")


def test_a_candidate_that_fails_is_out(
    auto: Open,
    timed: Callable[..., Any],
    mlp: bytes,
    x: Array,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from ort_gpu_ep.runtime.program import Program

    def fail(*_: object) -> None:
        raise DeviceError("the driver said no")

    races = timed(cpu=2.0, gpu=1.0)
    monkeypatch.setattr(Program, "run", fail)
    session = auto(mlp)
    with caplog.at_level(logging.WARNING, "ort_gpu_ep"):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert [list(r) for r in races] == [["cpu"]]
    assert session.stats()["runs_by_candidate"] == {"cpu": 1}
    assert "the driver said no" in caplog.text
    assert "the candidate 'gpu' is left out" in caplog.text
    with pytest.raises(DeviceError, match="the driver said no"):
        auto(mlp, strict=1).run(None, {"x": x})


def test_a_candidate_that_is_wrong_is_out(
    auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array, caplog: pytest.LogCaptureFixture
) -> None:
    """The race compares the first run of each candidate with the CPU's, without `verify`."""
    races = timed(cpu=2.0, gpu=1.0)
    session = auto(mlp, faults="corrupt@1")
    with caplog.at_level(logging.WARNING, "ort_gpu_ep"):
        for _ in range(3):
            assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert [list(r) for r in races] == [["cpu"]]
    assert session.stats()["runs_by_candidate"] == {"cpu": 3}
    assert "the candidate 'gpu' is left out, it fails: WrongResultError: output 'z': 1 of" in caplog.text
    assert "Float64 agrees with the CPU" in caplog.text
    assert "left alone" not in caplog.text, "one model's wrong result takes the GPU from no other"
    ((_, decision),) = session.explain().decisions
    assert decision.source == "partial"
    assert "gpu: WrongResultError: output 'z': 1 of" in decision.why
    with pytest.raises(WrongResultError, match="1 of"):
        auto(mlp, strict=1, faults="corrupt@1;seed=2").run(None, {"x": x})


def test_a_model_that_is_random_is_not_judged(auto: Open, timed: Callable[..., Any], x: Array) -> None:
    timed(cpu=2.0, gpu=1.0)
    model = make_model([node("RandomNormalLike", "x", "r"), node("Add", "x r", "y")], [info("x", list(x.shape))], ["y"])
    session = auto(model)
    session.run(None, {"x": x})
    assert session.stats()["runs_by_candidate"] == {"gpu": 1}


def test_a_decided_gpu_that_fails_is_answered_by_the_cpu(
    auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gpu_ep.runtime.program import Program
    from ort_gpu_ep.runtime.runs import Steady

    def fail(*_: object) -> None:
        raise DeviceError("the driver said no")

    timed(cpu=2.0, gpu=1.0)
    session, strict, want = auto(mlp), auto(mlp, strict=1), on_the_cpu(mlp, {"x": x})
    session.run(None, {"x": x})
    strict.run(None, {"x": x})
    for kind in (Program, Steady):
        monkeypatch.setattr(kind, "run", fail)
    assert_close(session.run(None, {"x": x}), want)
    assert session.stats()["fallbacks"] == 1
    with pytest.raises(DeviceError, match="the driver said no"):
        strict.run(None, {"x": x})


def test_threads(auto: Open, timed: Callable[..., Any], mlp: bytes, rng: np.random.Generator) -> None:
    """One thread measures; the others are answered by the CPU meanwhile."""
    timed(cpu=2.0, gpu=1.0)
    session = auto(mlp)
    inputs = [rng.standard_normal((3 + i % 2, 16)).astype("f") for i in range(24)]
    wants = [on_the_cpu(mlp, {"x": x}) for x in inputs]
    problems: list[BaseException] = []

    def work(part: int) -> None:
        try:
            for x, want in list(zip(inputs, wants, strict=True))[part::4]:
                assert_close(session.run(None, {"x": x}), want)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems
    assert sum(session.stats()["runs_by_candidate"].values()) == len(inputs)


@pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "create_ortvalue_from_shape_and_type"), reason="since onnxruntime 1.30"
)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_value_of_the_session_goes_into_all_its_runs(auto: Open, device: str, mlp: bytes, x: Array) -> None:
    """onnxruntime takes a value in the session alone that made it, and with placement=auto there are several."""
    session, (y, z) = auto(mlp), on_the_cpu(mlp, {"x": x})
    value = session.create_ortvalue_from_shape_and_type(x.shape, np.float32, device)
    value.update_inplace(x)
    for _ in range(6):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y")
        binding.bind_output("z")
        for got in (
            session.run(None, {"x": value}),
            [v.numpy() for v in session.run_with_ort_values(None, {"x": value})],
        ):
            assert_close(got, [y, z])
        session.run_with_iobinding(binding)
        assert_close(binding.copy_outputs_to_cpu(), [y, z])
        session.run(None, {"x": x})


def test_io_binding_keeps_what_it_was_bound_to(auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array) -> None:
    timed(cpu=1.0, gpu=2.0)
    session, want = auto(mlp), on_the_cpu(mlp, {"x": x})
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_output("z", "gpu")
    session.run_with_iobinding(binding)
    assert_close(binding.copy_outputs_to_cpu(), want)
    assert_close(session.run(None, {"x": x}), want)
    session.run_with_iobinding(binding)
    assert_close(binding.copy_outputs_to_cpu(), want)


@pytest.mark.parametrize(
    "feeds", [{"nonsense": np.ones((5, 16), "f")}, {}, {"x": np.ones((5, 17), "f")}, {"x": np.ones((5, 16))}]
)
def test_wrong_inputs_decide_nothing(feeds: dict[str, Array], auto: Open, mlp: bytes, x: Array) -> None:
    with pytest.raises(Exception, match=r"\w") as want:
        onnxruntime.InferenceSession(mlp, providers=[CPU]).run(None, feeds)
    session = auto(mlp)
    with pytest.raises(type(want.value)) as got:
        session.run(None, feeds)
    assert str(got.value) == str(want.value)
    assert session.explain().decisions == ()
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_explain_before_the_first_run_asks_the_partitioner(auto: Open, mlp: bytes) -> None:
    got = auto(mlp).explain()
    assert (got.decisions, len(got.reports)) == ((), 1)
    assert "the CPU's costs assumed" in str(got)
    assert [p.candidate for p in got.reports[0].predictions] == ["cpu", "gpu"]


def test_without_a_place_for_files(auto: Open, timed: Callable[..., Any], mlp: bytes, x: Array, tmp_path: Path) -> None:
    timed(cpu=2.0, gpu=1.0)
    (tmp_path / "file").write_text("")
    session = auto(mlp, cache_dir=str(tmp_path / "file" / "cache"))
    for _ in range(2):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert session.stats()["runs_by_candidate"] == {"gpu": 2}


def test_runs_of_any_session_keep_the_gpu_awake(mlp: bytes, x: Array) -> None:
    session = gpu_session(mlp)
    begin_s = time.perf_counter()
    session.run(None, {"x": x})
    assert begin_s < session.state.gpu.uses.last_s < time.perf_counter()
    assert gpu_session(mlp).state.gpu.uses is session.state.gpu.uses
    assert not session.state.gpu.uses.sleeps  # a software adapter


def test_many_sizes_are_shown_in_few_lines(
    auto: Open, timed: Callable[..., Any], mlp: bytes, rng: np.random.Generator
) -> None:
    timed(cpu=1e-6, gpu=2.0)
    session = auto(mlp)
    for rows in (40, *range(3, 33)):
        session.run(None, {"x": rng.standard_normal((rows, 16)).astype("f")})
    lines = [line for line in str(session.explain()).splitlines() if line.startswith("placement for ")]
    assert len(lines) <= 4
    assert any("sizes from x[3, 16] to x[" in line and ": cpu, predicted, " in line for line in lines)
    assert lines[-1].startswith("placement for x[32, 16]: cpu, predicted")


@pytest.mark.parametrize("method", ["int8", "int4", "codebook5"])
@pytest.mark.parametrize(("cpu_ms", "gpu_ms"), [(4.0, 2.0), (2.0, 4.0), (2.0, 2.3)])
def test_a_compressed_file_is_on_the_better_side(
    cpu_ms: float,
    gpu_ms: float,
    method: str,
    auto: Open,
    timed: Callable[..., Any],
    rng: np.random.Generator,
    tmp_path: Path,
) -> None:
    """The runs behind the first keep to the law of the better side, of which only the told times say which it is; sizes
    met later, too."""
    text = "(float[N, 64] x) => (float[N, 32] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
    held = {"w": rng.standard_normal((64, 96)).astype("f") / 8, "v": rng.standard_normal((96, 32)).astype("f") / 8}
    dense, packed = tmp_path / "dense.onnx", tmp_path / "packed.onnx"
    onnx.save(model_of(text, held), dense)
    compress(dense, packed, method)
    took_s = {"cpu": cpu_ms * 1e-3, "gpu": gpu_ms * 1e-3}
    timed(**took_s)
    session = auto(str(packed))
    for rows in (5, 9):
        feeds = {"x": rng.standard_normal((rows, 64)).astype("f")}
        want = gpu_session(str(packed)).run(None, feeds)
        session.run(None, feeds)
        before = dict(session.stats()["runs_by_candidate"])
        for _ in range(40):
            assert_close(session.run(None, feeds), want)
        ran = {name: count - before.get(name, 0) for name, count in session.stats()["runs_by_candidate"].items()}
        assert sum(ran.values()) == 40
        assert sum(count * took_s[name] for name, count in ran.items()) <= 40 * (LAW * min(took_s.values()) + LAW_S), (
            ran
        )
    better = min(took_s, key=took_s.__getitem__)
    assert {decision.candidate for _, decision in session.explain().decisions} == {better}
    assert ("weights read packed" in str(session.explain())) == (better == "gpu")
