"""`gunicorn --preload`: the GPU after the fork, or a clear word and the CPU's right answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.gunicorn_app import X
from tests.patience import PATIENCE_S, until
from tests.unit.graphs import model_of

ROOT = Path(__file__).resolve().parents[2]
W = np.linspace(-1, 1, 12, dtype="f").reshape(3, 4)
WORKERS = 2


@contextmanager
def served(folder: Path, sessions: str, *arguments: str, **options: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """What a request gives, of a server with two workers."""
    path, log = folder / "model.onnx", folder / "log"
    path.write_bytes(
        model_of("(float[N, 3] x) => (float[N, 4] y) { h = MatMul(x, w) y = Relu(h) }", {"w": W}).SerializeToString()
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        *arguments,
        "--workers",
        str(WORKERS),
        "--timeout",
        "600",
        "--bind",
        f"127.0.0.1:{port}",
        "tests.clients.gunicorn_app:app",
    ]
    variables = {
        f"ORT_GPU_EP_{name.upper()}": text
        for name, text in {"placement": "gpu", "cache_dir": str(folder / "cache"), **options}.items()
    }
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT), "MODEL": str(path), "SESSIONS": sessions}

    def asked() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as reply:
            told: dict[str, Any] = json.loads(reply.read())
        return told

    def answers() -> bool:
        assert server.poll() is None, log.read_text("utf-8")
        try:
            asked()
        except OSError:
            return False
        return True

    with (
        log.open("w") as said,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said) as server,
    ):
        try:
            until(answers, "an answer")
            yield asked
        finally:
            server.terminate()


def of_each_worker(asked: Callable[[], dict[str, Any]], on_gpu: bool) -> list[dict[str, Any]]:
    """What both workers answer, from there. With isolation=process the CPU answers until a worker has its own process
    for the GPU."""
    found = dict[int, dict[str, Any]]()

    def both() -> bool:
        told = asked()
        np.testing.assert_allclose(told["y"], np.maximum(X @ W, 0), rtol=1e-5, atol=1e-6)
        if told["on_gpu"] is on_gpu:
            found[told["pid"]] = told
        return len(found) == WORKERS

    until(both, "an answer of each worker")
    return list(found.values())


@pytest.mark.parametrize(
    ("sessions", "arguments", "options"),
    [
        ("after", (), {}),
        ("before", (), {}),
        ("after", ("--preload",), {}),
        ("before", ("--preload",), {"isolation": "process"}),
    ],
    ids=str,
)
def test_workers_have_the_gpu(
    sessions: str, arguments: tuple[str, ...], options: dict[str, str], tmp_path: Path
) -> None:
    with served(tmp_path, sessions, *arguments, **options) as asked:
        assert [told["missing"] for told in of_each_worker(asked, on_gpu=True)] == [""] * WORKERS


def test_workers_of_a_parent_that_has_used_the_gpu_are_told_what_to_do(tmp_path: Path) -> None:
    with served(tmp_path, "before", "--preload") as asked:
        for told in of_each_worker(asked, on_gpu=False):
            assert "gunicorn: without --preload" in told["missing"], told
            assert "isolation=process" in told["missing"]
