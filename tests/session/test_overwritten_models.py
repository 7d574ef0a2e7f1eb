"""A model's file that is overwritten in place while sessions of it run: nothing of theirs is made of the other
model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.placement import chooser
from ort_gpu_ep.placement.source import Source
from tests.overwriting import overwrite, overwrite_like
from tests.session.conftest import assert_close, gpu_session, on_the_cpu
from tests.unit.graphs import model_of

TEXT = "(float[N, 4] x) => (float[N, 4] y) { m = Mul(x, w) y = Tanh(m) }"


def made(weight: float) -> bytes:
    return bytes(model_of(TEXT, {"w": np.full(4, weight, "f")}).SerializeToString())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(made(0.5))
    return path


@pytest.mark.parametrize(
    ("content", "how"),
    [(made(-2.0), overwrite), (b"no model", overwrite), (b"", overwrite), (made(-2.0), overwrite_like)],
)
def test_runs_go_on_with_what_was_opened(
    content: bytes,
    how: Callable[[Path, bytes], None],
    path: Path,
    auto: Callable[..., Any],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chooser, "FLOOR", 0.0)
    session, bound = auto(str(path)), auto(str(path))
    how(path, content)
    for rows in (3, 5, 3):
        feeds = {"x": rng.standard_normal((rows, 4)).astype("f")}
        want = on_the_cpu(made(0.5), feeds)
        assert_close(session.run(None, feeds), want)
        binding = bound.io_binding()
        binding.bind_cpu_input("x", feeds["x"])
        binding.bind_output("y")
        bound.run_with_iobinding(binding)
        assert_close(binding.copy_outputs_to_cpu(), want)
    assert session.stats()["runs_by_candidate"] == {"cpu": 3}
    ((_, decision), *_) = session.runner.chooser.decided.items()
    assert "was overwritten" in decision.why


@pytest.mark.parametrize("how", [overwrite, overwrite_like])
def test_the_cpu_does_not_answer_for_another_model(how: Callable[[Path, bytes], None], path: Path) -> None:
    session = gpu_session(str(path))
    how(path, made(-2.0))
    with pytest.raises(ModelError, match="was overwritten"):
        session._cpu_session()


@pytest.mark.parametrize("how", [overwrite, overwrite_like])
@pytest.mark.parametrize("name", ["model.onnx", "weights.bin"])
def test_each_file_counts(name: str, how: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    path, other = tmp_path / "model.onnx", tmp_path / name
    onnx.save_model(
        onnx.load_from_string(made(0.5)), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    source = Source(str(path))
    with source.there() as there:
        assert there == str(path)
    how(other, other.read_bytes())
    with pytest.raises(ModelError, match=name), source.there():
        pass


def test_a_file_that_changes_while_a_session_is_made_of_it(path: Path) -> None:
    source = Source(str(path))
    with pytest.raises(ModelError), source.there():
        overwrite(path, made(-2.0))
