"""`bench --load` measures each candidate under each load, in JSON, a table and a picture."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.cli import under_load
from ort_gpu_ep.cli.plot import plot_load
from ort_gpu_ep.cli.under_load import Row
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.load import Sampler
from tests.cli.test_cli import parsed, printed, rejected
from tests.unit.graphs import model_of

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "model.onnx"
    weights = {"w": np.random.default_rng(3).standard_normal((16, 8)).astype("f")}
    path.write_bytes(
        model_of("(float[N, 16] x) => (float[N, 8] y) { h = MatMul(x, w) y = Softmax(h) }", weights).SerializeToString()
    )
    return path


@pytest.fixture
def load_file(tmp_path: Path) -> Path:
    path = tmp_path / "load"
    path.write_text("0.42 0.1")
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler_of = under_load.sampler_of

    def that_has_read(options: Mapping[str, str]) -> tuple[AdapterInfo, Sampler]:
        """However late its thread comes."""
        info, sampler = sampler_of(options)
        sampler.sample()
        return info, sampler

    monkeypatch.setattr(under_load, "sampler_of", that_has_read)
    monkeypatch.setattr(under_load, "SHORTEST_S", 0.3)
    monkeypatch.setattr(under_load.measure, "__defaults__", (0.5, *(under_load.measure.__defaults__ or ())[1:]))


def test_rows_of_each_load_and_plan(model: Path, load_file: Path, tmp_path: Path, quick: None) -> None:
    picture = tmp_path / "load.png"
    data = parsed(
        "bench",
        model,
        "--load",
        "low",
        "--runs",
        5,
        "--dim",
        "N=3",
        "-o",
        f"load=file:{load_file}",
        "--plot",
        picture,
        "--json",
    )
    assert [(r["level"], r["candidate"]) for r in data["rows"]] == [
        (level, candidate) for level in ("none", "low") for candidate in ("cpu", "gpu", "auto")
    ]
    for row in data["rows"]:
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["runs"] >= 5
        assert row["gpu_load"] == pytest.approx(0.42)
        assert row["cpu_load"] == pytest.approx(0.1)
        assert sum(row["chosen"].values()) == pytest.approx(1.0 if row["candidate"] == "auto" else 0.0)
    assert data["adapter"]["type"] == "software"
    assert picture.read_bytes().startswith(PNG)


def test_a_table_that_fits(model: Path, load_file: Path, quick: None) -> None:
    text = printed("bench", model, "--load", "high", "--runs", 3, "-o", f"load=file:{load_file}")
    assert "p99" in text
    assert text.count("42%") == 2
    assert "high" in text
    assert "medium" not in text


def test_without_matplotlib(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in " ".join(rejected("bench", model, "--plot", tmp_path / "x.png").split())


@pytest.mark.usefixtures("slow_drawing")
def test_the_picture_shows_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    import matplotlib.axes

    errorbar = matplotlib.axes.Axes.errorbar

    def spy(axes: Any, x: Any, y: Any, **given: Any) -> Any:
        drawn.append((x, list(y), given["yerr"][1], axes))
        return errorbar(axes, x, y, **given)

    monkeypatch.setattr(matplotlib.axes.Axes, "errorbar", spy)
    rows = [
        Row("high", "gpu", [20.0] * 10, 0.9),
        Row("none", "gpu", [2.0] * 10, 0.0),
        Row("none", "cpu", [3.0] * 9 + [13.0], 0.0),
    ]
    plot_load(tmp_path / "a.png", "title", rows)
    assert [d[:2] for d in drawn] == [([0.0], [3.0]), ([0.0, 90.0], [2.0, 20.0])]
    assert drawn[0][2][0] == pytest.approx(np.quantile([3.0] * 9 + [13.0], 0.95) - 3.0)
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert drawn[0][3].get_xlabel() == "GPU load by others, %"
    drawn.clear()
    plot_load(tmp_path / "b.png", "title", [Row("medium", "auto", [1.0], None)])
    assert drawn[0][0] == [60.0]
    assert "no source" in drawn[0][3].get_xlabel()


def test_what_auto_chose() -> None:
    """By the counts of the session's policy; of a session without one, by where its nodes are."""
    counts = {"cpu": 3, "gpu": 10}
    session = SimpleNamespace(
        stats=lambda: {"policy": {"candidates": {candidate: {"runs": n} for candidate, n in counts.items()}}}
    )
    before = under_load._counts(session)
    counts["cpu"] = 6
    assert under_load._chosen(session, before) == {"cpu": 1.0}
    counts["gpu"] = 19
    assert under_load._chosen(session, before) == {"cpu": 0.25, "gpu": 0.75}
    for on_gpu, on_cpu, wanted in ((0, 5, "cpu"), (5, 0, "gpu"), (3, 2, "cut")):
        explained = SimpleNamespace(count={"gpu": on_gpu, "cpu": on_cpu}.__getitem__)
        plain = SimpleNamespace(stats=dict, explain=lambda explained=explained: explained)
        assert under_load._chosen(plain, {}) == {wanted: 1.0}


def test_turns_are_fair() -> None:
    """Each candidate runs once a round, in both orders."""
    ran: list[str] = []
    candidates = {name: SimpleNamespace(run=lambda *_, name=name: ran.append(name)) for name in "abc"}
    turns = list(under_load._turns(candidates, {}, SimpleNamespace(latest=None), 4, 0.0))  # type: ignore[arg-type]
    assert len(turns) == 4
    assert "".join(ran) == "abccbaabccba"
