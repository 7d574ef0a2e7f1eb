"""Fuzzed models end as on ONNX Runtime's CPU: no crash, no hang, no other answer. `python -m tests.session.fuzz --count 5000` runs more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.session.fuzz import START_S, Answer, defects, different, run
from tests.session.fuzz_allowed import DIFFERENCES
from tests.session.fuzz_models import FuzzModel

SEEDS = range(500)
"""A tenth of a second of CPU time each, and ten seconds to make the models they start as."""


@pytest.mark.timeout(3600)
def test_fuzzed_models_end_as_on_the_cpu() -> None:
    tally = run(SEEDS, START_S)       # however busy the machine is
    assert not tally.wrong
    assert tally.models == len(SEEDS)
    assert tally.counts["on_gpu"] > len(SEEDS) / 3
    assert tally.counts["raised"] > len(SEEDS) / 10


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


def test_users_are_told_of_each_difference() -> None:
    text = (Path(__file__).parents[2] / "docs" / "drop-in.md").read_text("utf-8")
    assert [name for name in DIFFERENCES if f"**{name[0].upper()}{name[1:]}**" not in text] == []
