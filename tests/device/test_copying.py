"""Copies on the host by several threads: the right bytes, whoever copies them, and errors that reach who asked."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ort_gpu_ep.device import copying
from ort_gpu_ep.webgpu.library import ffi
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PAGE = 4096


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is there yet, and they are worth it from 100 KiB on."""
    monkeypatch.setattr(copying, "_helpers", copying._Helpers())
    monkeypatch.setattr(copying, "NBYTES_A_THREAD", 100 << 10)


def copied_by(monkeypatch: pytest.MonkeyPatch, move: Callable[[int, int, int], object]) -> None:
    monkeypatch.setattr(copying, "ctypes", SimpleNamespace(memmove=move))


def copy(sizes: list[int], threads: int) -> None:
    """Arrays of so many bytes, one behind another with gaps between them, as inputs are in a staging buffer."""
    rng, copies, target, want = np.random.default_rng(len(sizes)), [], np.zeros(sum(sizes) + 64 * len(sizes), "u1"), []
    begin = ffi.cast("char *", ffi.from_buffer(target))
    place = 0
    for nbytes in sizes:
        source = rng.integers(0, 256, nbytes, "u1")
        want.append((place, source))
        copies.append(copying.Copy(begin + place, ffi.from_buffer(source), nbytes))
        place += nbytes + 64
    copying.copy_all(copies, threads)
    expected = np.zeros_like(target)
    for place, source in want:
        expected[place : place + source.size] = source
    np.testing.assert_array_equal(target, expected)


def test_results_have_a_thread_from_a_megabyte_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "usable_threads", lambda: 3)
    assert [
        copying.read_threads(nbytes, False) for nbytes in (0, 1 << 20, (2 << 20) - 1, 2 << 20, 3 << 20, 9 << 20)
    ] == [1, 1, 1, 2, 3, 3]
    assert copying.read_threads(9 << 20, True) == 1


@pytest.mark.usefixtures("helpers")
def test_the_least_of_a_thread_can_be_given() -> None:
    target, source = np.zeros(2 << 20, "u1"), np.random.default_rng(0).integers(0, 256, 2 << 20, "u1")
    for least, helpers in ((1 << 21, 0), (1 << 20, 1), (None, 3)):
        target[:] = 0
        copying._helpers = copying._Helpers()
        copying.copy_all([copying.Copy(ffi.from_buffer(target), ffi.from_buffer(source), source.size)], 4, least)
        np.testing.assert_array_equal(target, source)
        assert copying._helpers._threads == helpers


@pytest.mark.usefixtures("helpers")
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    "sizes",
    [
        [1],
        [3, 5, 7],
        [500_001],
        [1 << 20],
        [(1 << 20) + 1, 3, (1 << 19) - 1],
        [70_000] * 9,
        [65_536, 65_537, 131_073],
        [0, 900_000],
    ],
)
def test_every_byte_is_copied_and_no_other(sizes: list[int], threads: int) -> None:
    copy(sizes, threads)


def test_pieces_end_with_pages_of_the_target() -> None:
    for target in (PAGE * 5, PAGE * 5 + 64, PAGE * 6 - 4):
        for nbytes in (1, PAGE - 1, PAGE, 3 * PAGE + 5, 100_003):
            for count in (1, 2, 3, 7):
                pieces = copying.in_pieces(target, 77, nbytes, count)
                assert 1 <= len(pieces) <= count
                assert (pieces[0][0], pieces[0][1]) == (target, 77)
                for (at, source, size), (then, after, _) in pairwise(pieces):
                    assert then % PAGE == 0
                    assert (then, after) == (at + size, source + size)
                assert sum(size for _, _, size in pieces) == nbytes


@pytest.mark.usefixtures("helpers")
def test_several_threads_copy_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    met, seen = threading.Barrier(3), set[int]()

    def meet(*piece: int) -> None:
        met.wait(PATIENCE_S)
        seen.add(threading.get_ident())
        ctypes.memmove(*piece)

    copied_by(monkeypatch, meet)
    for _ in range(2):
        copy([900_000], 3)
    assert len(seen) == 3, "the same ones again"
    assert copying._helpers._threads == 2


@pytest.mark.usefixtures("helpers")
def test_small_copies_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    copy([50_000, 60_000], 4)
    copy([900_000], 1)
    assert copying._helpers._threads == 0


@pytest.mark.usefixtures("helpers")
def test_what_a_thread_raises_reaches_the_caller_when_all_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    me, met, over = threading.get_ident(), threading.Barrier(3), list[int]()

    def fail(*piece: int) -> None:
        met.wait(PATIENCE_S)
        if threading.get_ident() != me:
            time.sleep(0.05)  # after the caller's own piece
            over.append(1)
            raise OSError("a page that is not there")
        ctypes.memmove(*piece)
        over.append(0)

    copied_by(monkeypatch, fail)
    with pytest.raises(OSError, match="not there"):
        copy([900_000], 3)
    assert len(over) == 3, "nobody copies any more"
    monkeypatch.undo()
    copy([900_000], 3)


@pytest.mark.usefixtures("helpers")
def test_without_further_threads_the_caller_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    copy([900_000, 7], 4)
    assert copying._helpers._threads == 0


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3), (16, 4), (128, 4)])
def test_half_of_the_cores_at_most(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying.processes, "cores", lambda: cores)
    assert copying.usable_threads() == threads


def in_a_process(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert not done.stderr


@pytest.mark.usefixtures("helpers")
def test_a_forked_child_has_threads_of_its_own() -> None:
    copy([900_000], 4)
    parents = copying._helpers
    assert parents._threads == 3
    copying._after_fork()
    assert copying._helpers is not parents
    copy([900_000], 3)
    assert (copying._helpers._threads, parents._threads) == (2, 3)


def test_threads_that_sleep_hold_no_exit_up_and_copies_at_exit_are_right() -> None:
    in_a_process("""
import atexit
import numpy as np
from ort_gpu_ep.device import copying
from ort_gpu_ep.webgpu.library import ffi
copying.NBYTES_A_THREAD = 100 << 10
source = np.arange(900_000, dtype="u1")
def copy(threads):
    target = np.zeros_like(source)
    copying.copy_all([copying.Copy(ffi.from_buffer(target), ffi.from_buffer(source), source.size)], threads)
    assert (target == source).all()
copy(2)
assert copying._helpers._threads == 1
atexit.register(copy, 4)
""")
