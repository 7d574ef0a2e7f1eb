"""Fuzzed models end as on ONNX Runtime's CPU: no crash, no hang, no other answer. `python -m tests.session.fuzz --count
5000` runs more."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ort_gpu_ep
from tests.plugin.cases import info, make_model, node
from tests.session.fuzz import (
    START_S,
    UNOPTIMISED,
    Answer,
    Tally,
    answers,
    cpu_session,
    defects,
    different,
    not_run,
    outcome,
    patience_s,
    plain_session,
    run,
)
from tests.session.fuzz_allowed import DIFFERENCES, allowed
from tests.session.fuzz_models import FuzzModel
from tests.session.quantized_graphs import quantized_model
from tests.session.situations import situation

QUANTIZED_SEEDS = 16
SIZE_SEEDS = 24
COUNT_SEEDS = 16
SITUATIONS = 12


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 1000), marks=pytest.mark.nightly)], ids=str)
def test_fuzzed_models_end_as_on_the_cpu(seeds: range) -> None:
    """A tenth of a second of CPU time each, and ten seconds to make the models they start as."""
    tally = run(seeds, START_S)  # however busy the machine is
    assert not tally.wrong
    assert not tally.unclaimed, "what the claim counts for the GPU runs there"
    assert tally.models == len(seeds)
    assert tally.counts["on_gpu"] > len(seeds) / 3
    assert tally.counts["raised"] > len(seeds) / 10


def test_quantized_models_end_as_on_the_cpu() -> None:
    """Of each family some: `python -m tests.session.fuzz --quantized --count 2000` runs more."""
    tally = run(range(QUANTIZED_SEEDS), START_S, "--quantized")
    assert not tally.wrong
    assert not tally.unclaimed
    assert tally.counts["on_gpu"] > QUANTIZED_SEEDS * 0.8


def test_calculations_with_sizes_end_as_on_the_cpu() -> None:
    """No run of them is left to the CPU: `python -m tests.session.fuzz --sizes --count 5000` runs more."""
    tally = run(range(SIZE_SEEDS), START_S, "--sizes")
    assert not tally.wrong
    assert tally.counts["on_gpu"] > SIZE_SEEDS * 0.8
    assert not tally.counts["fallbacks"]


@pytest.mark.timeout(1200)
def test_models_behind_counts_end_as_on_the_cpu() -> None:
    """Most are one partition: `python -m tests.session.fuzz --counts --count 2000` runs more."""
    tally = run(range(COUNT_SEEDS), START_S, "--counts")
    assert not tally.wrong
    assert not tally.unclaimed
    assert tally.counts["on_gpu"] > COUNT_SEEDS * 0.8


def test_differences_are_seen() -> None:
    zeros = np.zeros((2, 3), "f")
    assert not different(zeros, zeros)
    assert different(zeros + 1, zeros).startswith("6 of 6 float32 differ, 1.0 instead of 0.0")
    assert different(np.full((2, 3), np.nan, "f"), zeros)
    assert different(zeros[:1], zeros) == "float32(1, 3) instead of float32(2, 3)"
    assert different(np.array([1]), np.array([2]))
    answered, raised, model = Answer([zeros]), Answer([], "Fail", "no"), FuzzModel(b"", [], "", (), "normal")
    assert defects(model, [answered], [raised]) == ["run 0: Fail: no instead of [('float32', (2, 3))]"]
    assert defects(model, [raised], [answered])
    assert not defects(model, [raised], [raised, raised])


def test_what_is_claimed_and_answered_by_the_cpu_is_seen() -> None:
    model = make_model([node("Relu", "x", "y")], [info("x", ["N"])], ["y"])
    session = ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu"})
    assert not not_run(session)
    session.state.record("fallback", "p", "UnsupportedNodeError: LIMIT: binds 68 buffers")
    session.state.record("fallback", "p", "UnsupportedNodeError: RANK: Resize->Y: Resize of 4 axes; taken: at most 3")
    assert not_run(session) == ["UnsupportedNodeError: LIMIT: binds 68 buffers"]
    tally = Tally()
    tally.add(
        7,
        {
            "found": [],
            "known": [],
            "on_gpu": 1,
            "refused": False,
            "raised": 0,
            "fallbacks": 1,
            "unclaimed": not_run(session),
        },
    )
    assert tally.unclaimed == [7]


def test_few_steps_of_a_byte_are_no_defect() -> None:
    product = make_model([node("QLinearMatMul", "x s z w t u v o", "y")], ["x"], ["y"])
    model = FuzzModel(product, [], "", (), "normal", 0.5)
    want = np.zeros(100, "u1")
    for apart, elements, found in ((1, 9, False), (2, 9, False), (3, 1, True), (1, 30, True)):
        got = want.copy()
        got[:elements] += apart
        assert bool(defects(model, [Answer([want])], [Answer([got])])) == found
        assert bool(defects(model, [Answer([want.astype("f")])], [Answer([got * np.float32(0.5)])])) == found
    plain = FuzzModel(product, [], "", (), "normal")
    assert defects(plain, [Answer([want])], [Answer([want + np.eye(1, 100, dtype="u1")[0]])])


def test_what_nodes_say_is_right_where_onnxruntimes_optimisations_round_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of this model's means lie between two bytes. Only whole answers of onnxruntime count: a wrong byte is a
    defect."""
    seed = 940097
    model = quantized_model(seed)
    want = answers(model, cpu_session)[0]
    assert defects(model, want, answers(model, plain_session)[0])
    end = outcome(seed, model, want)
    assert (end["found"], end["known"]) == ([], [UNOPTIMISED])
    whole = ort_gpu_ep.InferenceSession.run
    monkeypatch.setattr(
        ort_gpu_ep.InferenceSession, "run", lambda *args: [np.where(a == a.max(), a - 4, a) for a in whole(*args)]
    )
    assert outcome(seed, model, want)["found"]


def test_a_model_that_takes_onnxruntime_long_may_take_ours_long() -> None:
    assert patience_s({"seed": 1, "at": "onnxruntime"}, 100) == 100
    assert patience_s({"seed": 1, "at": "ours", "took_s": 20.0}, 100) == 200


def test_values_decide_what_is_allowed() -> None:
    """Of normal content: infinity in another input, a number that the type holds, elements that are not the same are no
    excuse."""
    cast = make_model([node("Cast", "x", "y", to=3)], [info("x", [3])], [info("y", [3], 3)])
    wrong = "1 of 3 int8 differ, 127 instead of 0 at (0,)"
    runs = [
        {"x": np.array(values, "f")} for values in ([1, -128.9, 127.5], [1, 2, np.inf], [1, 2, 128], [1, 2, np.nan])
    ]
    models = FuzzModel(cast, runs, "", (), "normal")
    assert [allowed(models, f"run {n}: {wrong}") for n in range(4)] == [
        "",
        *["floats beyond the range of an integer"] * 3,
    ]
    assert not allowed(models, "run 1: Fail: no instead of [('int8', (3,))]")

    mean = make_model([node("MeanVarianceNormalization", "x", "y")], [info("x", [2, 2, 1, 1])], ["y"])
    runs = [{"x": np.array(values, "f").reshape(2, 2, 1, 1)} for values in ([1, 2, 3, 4], [1, 2, 1, 4], [1, 1, 2, 2])]
    models = FuzzModel(mean, runs, "", (), "normal")
    wrong = "1 of 4 float32 differ, 0.0 instead of nan at (0, 0, 0, 0)"
    assert [allowed(models, f"run {n}: {wrong}") for n in range(3)] == [
        "",
        "equal elements in MeanVarianceNormalization",
        "",
    ]

    least = make_model([node("ReduceMin", "x", "y")], [info("x", [4], 12)], [info("y", [1], 12)])
    models = FuzzModel(
        least, [{"x": np.array([0, 1, 2, last], np.uint32)} for last in (2**31 - 1, 2**31)], "", (), "normal"
    )
    wrong = "1 of 1 int64 differ, 0 instead of 2 at (0,)"
    assert [allowed(models, f"run {n}: {wrong}") for n in range(2)] == ["", "large int64 in ReduceMax and ReduceMin"]

    for mode, known in ((2, "scores of keys that are not seen in Attention"), (1, "")):
        scores = FuzzModel(
            make_model(
                [node("Attention", "q k v", "y p n s", qk_matmul_output_mode=mode)], ["q", "k", "v"], ["y", "s"]
            ),
            [{}],
            "",
            (),
            "normal",
        )
        assert (
            allowed(scores, f"run 0: 84 of 432 float32 differ, -inf instead of {np.finfo('f4').min} at (0, 0, 0, 13)")
            == known
        )
        assert not allowed(scores, "run 0: 84 of 432 float32 differ, -inf instead of -1.0 at (0, 0, 0, 13)")

    product = make_model([node("MatMul", "x", "y")], [info("x", [2, None])], ["y"])
    models = FuzzModel(product, [{"x": np.ones((2, size), "f")} for size in (1, 0)], "", (), "normal")
    assert [allowed(models, f"run {n}: 4 of 8 float32 differ, 0.0 instead of 1.25 at (1, 0)") for n in range(2)] == [
        "",
        "tensors without elements",
    ]
    assert not allowed(models, "run 1: 4 of 8 float32 differ, 1.25 instead of 0.0 at (1, 0)")


def test_what_onnxruntime_does_not_survive_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    tally.ended(7, "onnxruntime", "hangs: no line for 120 s")
    tally.ended(8, "ours", "crashed: SIGSEGV: ")
    assert (tally.models, tally.own, tally.wrong) == (2, [7], [8])
    assert capsys.readouterr().out.splitlines() == [
        "7: onnxruntime itself hangs: no line for 120 s",
        "8: crashed: SIGSEGV: ",
    ]


def test_users_are_told_of_each_difference() -> None:
    text = (Path(__file__).parents[2] / "docs" / "drop-in.md").read_text("utf-8")
    assert [name for name in DIFFERENCES if f"**{name[0].upper()}{name[1:]}**" not in text] == []


@pytest.mark.timeout(1200)
def test_situations_end_as_on_the_cpu() -> None:
    """Some: `python -m tests.session.situations --first 1000 --seconds 3600` takes more."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.session.situations", "--count", str(SITUATIONS)],
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = re.search(
        r"^(\d+) situations, (\d+) runs on the GPU side, (\d+) left to the CPU, wrong: \[\]$", done.stdout, re.M
    )
    assert found is not None, done.stdout
    situations, runs, left = map(int, found.groups())
    assert situations == SITUATIONS
    assert runs - left > 400


def test_situations_see_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ort_gpu_ep.InferenceSession.run
    monkeypatch.setattr(
        ort_gpu_ep.InferenceSession, "run", lambda *args: [a + (a.dtype.kind == "f") for a in whole(*args)]
    )
    assert any("again: " in text for text in situation(0, Counter()))
