"""Sessions whose GPU is in a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ort_gpu_ep import register
from ort_gpu_ep.config import Config
from ort_gpu_ep.isolation import remote
from ort_gpu_ep.isolation.remote import Lease, open_remote
from tests.plugin.cases import Opened, info, make_model, node, open_session


@pytest.fixture(scope="module", autouse=True)
def shared_worker() -> Iterator[None]:
    """One worker for all sessions with default options: starting one takes a second."""
    register()
    lease = Lease(open_remote(Config(isolation="process")))
    yield
    lease.end()


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """Options of a session whose worker is its own, quick to replace, and may be killed."""
    return {"cache_dir": str(tmp_path), "health": "off"}


def isolated(model: bytes, **options: object) -> Opened:
    return open_session(model, isolation="process", **options)


def mlp(seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    weights = {"W": rng.normal(size=(16, 300)).astype("f"), "V": rng.normal(size=(300, 8)).astype("f") / 9}
    nodes = [node("MatMul", "x W", "h"), node("Relu", "h", "r"), node("MatMul", "r V", "s"), node("Softmax", "s", "y")]
    return make_model(nodes, [info("x", ["N", 16])], ["y"], weights)


def rows(count: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(size=(count, 16)).astype("f")


def workers(process: psutil.Process | None = None) -> list[psutil.Process]:
    """The worker processes below a process, dead ones that nobody has waited for too."""
    found = []
    for child in (process or psutil.Process()).children():
        try:
            if child.status() == psutil.STATUS_ZOMBIE or "ort_gpu_ep.isolation.worker" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def end_of(pid: int) -> bool:
    """Whether a process that is not our child is gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def patient_for(opened: Opened, seconds: float) -> Iterator[None]:
    """A worker that does not answer for so long counts as hung: around runs that it can't answer, for on a busy machine
    others take as long."""
    programs: list[Any] = [p.program for p in opened.state.partitions]
    usual_s = [program._timeout_s for program in programs]
    for program in programs:
        program._timeout_s = seconds
    yield
    for program, limit_s in zip(programs, usual_s, strict=True):
        program._timeout_s = limit_s


def gpu_of(opened: Opened) -> remote.RemoteGpu:
    assert opened.state.backend is not None
    assert isinstance(opened.state.backend.adapter, remote.RemoteGpu)
    return opened.state.backend.adapter
