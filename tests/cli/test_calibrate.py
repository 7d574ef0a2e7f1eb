"""ort-gpu-ep calibrate: tables that fit, data that parses, a picture, and what is said where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ort_gpu_ep.calibration import cache
from ort_gpu_ep.cli.calibrate import draw
from ort_gpu_ep.kernels.cost_parameters import Roofs
from ort_gpu_ep.kernels.profile import GUESSED, Curve, Profile
from tests.cli.test_cli import call, parsed, printed, rejected

MADE = Profile(
    "an adapter",
    1.5e-4,
    3e-6,
    Curve(((4096.0, 1e-7), (16777216.0, 5e-3))),
    Curve(((4096.0, 2e-6), (16777216.0, 3e-3))),
    {"product": Curve(((4.2e6, 2.5e-3), (1.4e7, 9e-3))), "gather": Curve(((5e5, 6e-4),))},
    Roofs(2e12, 3e11, 4e-7, 5e-8, 7e11),
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that the adapter would have been measured."""
    calls: list[int] = []

    def measure(gpu: object, progress: object, whole: bool, wake_s: float) -> Profile:
        calls.append(1)
        return MADE

    monkeypatch.setattr(cache, "measure", measure)
    monkeypatch.setattr(cache, "_known", {})
    return calls


def test_tables(measured: list[int], tmp_path: Path) -> None:
    text = printed("calibrate", "-o", f"cache_dir={tmp_path}")
    for wanted in (
        "150.0 µs",
        "3.0 µs",
        "16.8 MB",
        "5.00 ms",
        "3.36 GB/s",
        "< 1 µs",
        "product",
        "4.2 Mflop",
        "1.68 Gflop/s",
        "gather",
        "833 MB/s",
        "at most 2 Tflop/s",
        "workgroup memory 700 GB/s",
        "400 ns",
        "50 ns",
    ):
        assert wanted in text
    assert "assumptions" not in text


def test_json_and_fresh(measured: list[int], tmp_path: Path) -> None:
    data = parsed("calibrate", "--json", "-o", f"cache_dir={tmp_path}")
    assert data.pop("guessed") is False
    assert Profile.from_dict(data) == MADE
    parsed("calibrate", "--json", "-o", f"cache_dir={tmp_path}")
    assert len(measured) == 1
    parsed("calibrate", "--json", "--fresh", "-o", f"cache_dir={tmp_path}")
    assert len(measured) == 2


def test_what_was_not_measured_is_said(measured: list[int], tmp_path: Path) -> None:
    options = ("-o", f"cache_dir={tmp_path}", "-o", "faults=lost@100000")
    assert "assumptions" in printed("calibrate", *options)
    assert parsed("calibrate", "--json", *options)["guessed"] is True


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_plot(suffix: str, magic: bytes, measured: list[int], tmp_path: Path) -> None:
    path = tmp_path / f"transfers.{suffix}"
    assert f"written: {path}" in call("calibrate", "--plot", path, "-o", f"cache_dir={tmp_path}").stdout
    assert path.read_bytes().startswith(magic)


@pytest.mark.usefixtures("slow_drawing")
def test_the_plot_shows_both_directions(tmp_path: Path) -> None:
    draw(MADE, tmp_path / "a.svg")
    draw(GUESSED, tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text("utf-8")
    for label in ("upload", "readback", "an empty run", "Transfers: an adapter"):
        assert f"<!-- {label}" in text
    assert text != (tmp_path / "b.svg").read_text("utf-8")


def test_another_suffix_is_refused_before_anything_is_measured(measured: list[int], tmp_path: Path) -> None:
    done = call("calibrate", "--plot", tmp_path / "a.pdf", "-o", f"cache_dir={tmp_path}")
    assert done.returncode == 2
    assert ".png or .svg" in done.stderr
    assert not measured


def test_without_matplotlib(measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install matplotlib" in rejected(
        "calibrate", "--plot", tmp_path / "a.png", "-o", f"cache_dir={tmp_path}"
    ).replace("\n", " ")
    assert not measured


def test_an_unwritable_picture_is_a_message(measured: list[int], tmp_path: Path) -> None:
    done = call("calibrate", "--plot", tmp_path / "nowhere" / "a.png", "-o", f"cache_dir={tmp_path}")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert not measured, "it looks before any work"


def test_another_adapter_is_a_message() -> None:
    assert "no such adapter" in rejected("calibrate", "-o", "adapter=abacus").replace("\n", " ")
