"""benchmarks/replay.py: replay.txt agrees with the kernels of this folder, and a change of a text is found and shown.

The whole set takes minutes: one case in SHARE is composed here, all of them in CI's static job.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import replay

SHARE = 20
SELECT = "record/softmax_rows/[01]$"


def test_the_file_agrees_with_the_kernels() -> None:
    found, _ = replay.replayed(share=SHARE)
    recorded = replay.recorded()
    assert len(found) > 100
    changed = replay.changes({name: recorded.get(name, {}) for name in found}, found)
    assert not changed, "other kernels than recorded; where that is meant: python -m benchmarks.replay update"


def test_a_changed_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = replay.replayed(SELECT)
    assert {limits for found in before.values() for limits in found} == set(replay.LIMITS)
    compose = replay.compose
    monkeypatch.setattr(
        replay, "compose", lambda kernel, bindings, limits: compose(kernel, bindings, limits) + "// changed\n"
    )
    after, _ = replay.replayed(SELECT)
    assert set(replay.changes(before, after)) == {(name, limits) for name in before for limits in replay.LIMITS}


def test_what_was_written_is_read() -> None:
    kernels = {"a/x": {"h200": ["1", "2"], "lavapipe": ["1", "2"], "minimum": ["3"]}, "b": {"h200": ["4"]}}
    lines = replay.lines_of(kernels)
    assert lines == ["a/x h200,lavapipe 1 2", "a/x minimum 3", "b h200 4"]
    assert replay.kernels_of(lines) == kernels
    assert replay.changes(kernels, {"b": {"h200": ["5"]}}) == [
        *(("a/x", limits) for limits in replay.LIMITS),
        ("b", "h200"),
    ]


def test_two_folders_are_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = replay.RECORDED.parents[1]
    for name in ("ort_gpu_ep", "models"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shader = tmp_path / "ort_gpu_ep" / "shaders" / "softmax_rows.wgsl"
    shader.write_text(
        shader.read_text().replace(
            "fn group_main(group: u32, lane: u32) {", "fn group_main(group: u32, lane: u32) { // here"
        )
    )
    done = CliRunner().invoke(replay.app, ["compare", str(root), str(tmp_path), "--select", SELECT])
    assert not done.exit_code, done.output
    assert "+fn group_main(group: u32, lane: u32) { // here" in done.output
    assert "of 6 lists of kernels differ" in done.output
    assert not done.output.splitlines()[-1].startswith("0 ")
