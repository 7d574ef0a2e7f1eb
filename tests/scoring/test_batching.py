"""How many rows go into a run, and whether the CPU has a share: decided by what is measured, which is told here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ort_gpu_ep import AdapterError, ScoringError
from ort_gpu_ep.scoring import batching
from ort_gpu_ep.scoring.model import Model, Value
from ort_gpu_ep.scoring.worker import Failed

LOADED: Any = SimpleNamespace(held=SimpleNamespace(source=None), rows=1000)


def model(batch: int | None = None) -> Model:
    return Model("m", "", (Value("x", "float32", (8,), batch),), ())


class Slot:
    """found: what is measured of it; rates: rows a second alone, and beside others."""

    def __init__(self, kind: str, found: Any = None, rates: Any = (0.0, 0.0), is_optional: bool = False) -> None:
        self.name, self.kind, self.found, self.rates, self.is_optional, self.batch, self.measured = (
            kind,
            kind,
            found,
            rates,
            is_optional,
            1,
            0,
        )

    def measure(self, *_: Any) -> Any:
        self.measured += 1
        return self.found


def choose(slots: list[Any], batch: int | str = "auto", given: Model | None = None, before: Any = ()) -> str:
    return batching.choose(slots, batch, given or model(), dict(before), lambda: LOADED, 1000)


def test_the_smallest_batch_that_is_nearly_the_best_and_equal_adapters_once() -> None:
    slots = [Slot("A", [(1, 10.0), (2, 96.0), (4, 100.0)]), Slot("A"), Slot("B", [(1, 5.0), (2, 9.0)])]
    assert choose(slots) == "A: 2 (96 rows/s; 4 rows: 100); B: 2 (9 rows/s, the most that was tried)"
    assert [(s.batch, s.measured) for s in slots] == [(2, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("batch", "fixed", "why"),
    [(7, None, "7, as asked"), ("7", None, "7, as asked"), ("auto", 7, "7: the model fixes it")],
)
def test_what_is_known_is_not_measured(batch: Any, fixed: Any, why: str) -> None:
    slot = Slot("A")
    assert choose([slot], batch, model(fixed), {"A": 9}) == why
    assert (slot.batch, slot.measured) == (7, 0)


@pytest.mark.parametrize("batch", [0, -1, 1.5, "0", "x", ""])
def test_what_is_no_number_of_rows_is_refused(batch: Any) -> None:
    for right in ("auto", 1, 7, "1"):
        batching.check(right)
    with pytest.raises(ScoringError, match="expected auto or a number of rows"):
        batching.check(batch)


def test_no_more_rows_are_tried_than_a_shard_has_and_memory_takes() -> None:
    row = model().row_nbytes()
    assert [batching.limit(model(), rows) for rows in (0, 1, 2, 10**9)] == [1, 1, 2, batching.MOST_ROWS]
    large = Model("m", "", (Value("x", "float32", (batching.MOST_NBYTES // 4,), None),), ())
    assert large.row_nbytes() > row
    assert batching.limit(large, 1000) == 1


def test_a_run_that_goes_on_has_the_batch_that_it_was_begun_with() -> None:
    slots = [Slot("A"), Slot("B", [(1, 5.0)])]
    assert (
        choose(slots, before={"A": 9, "B": 0})
        == "A: 9 (as this output was begun with); B: 1 (5 rows/s, the most that was tried)"
    )
    assert [(s.batch, s.measured) for s in slots] == [(9, 0), (1, 1)]


def test_what_no_run_could_do_is_an_error_and_other_failures_are_told() -> None:
    for kind, expected in (("device", AdapterError), ("memory", ScoringError)):
        with pytest.raises(expected, match=r"A: .*gone"):
            choose([Slot("A", Failed(kind, "gone"))])
    assert (
        choose([Slot("A", Failed("fatal", "the model refused rows"))]) == "A: 64 (not measured: the model refused rows)"
    )


@pytest.mark.parametrize(
    ("gpu", "cpu", "message"),
    [
        ((100.0, 95.0), 30.0, ""),
        ((100.0, 60.0), 44.0, "the CPU has no share: 104 rows/s with it, 100 without"),
        ((100.0, 100.0), 5.0, ""),
        ((100.0, 50.0), Failed("fatal", "no"), "the CPU has no share: 50 rows/s with it, 100 without"),
    ],
)
def test_the_cpu_has_a_share_where_more_is_done_with_it(
    gpu: Any, cpu: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is slower beside the CPU, as one that is the CPU is."""
    slots: list[Any] = [Slot("GPU", rates=gpu), Slot("CPU", rates=(cpu, cpu), is_optional=True)]
    rounds, real = list[int](), batching._together

    def together(given: list[Any], loaded: Any) -> float:
        rounds.append(len(given))
        for slot in given:
            slot.rate = lambda *_, slot=slot: slot.rates[len(given) > 1]
        return real(given, loaded)

    monkeypatch.setattr(batching, "_together", together)
    assert batching.declined(slots, LOADED) == message
    assert rounds == [1, 2, 1, 2]
