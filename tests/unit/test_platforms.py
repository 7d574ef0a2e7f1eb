"""What only some systems have is not asked of all: names that Python lacks on Windows are taken away here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ort_gpu_ep import store

WITHOUT = """
import enum, mmap, os, select, signal, sys
import onnxruntime, numpy          # before: others may need them
for module, names in ((signal, "SIGKILL SIGHUP SIGPIPE SIGXFSZ"), (select, "poll POLLHUP POLLERR"),
                      (mmap, "PROT_READ"), (os, "memfd_create pread")):
    for name in names.split():
        delattr(module, name)
there = {s.name: s.value for s in signal.Signals if s.name not in ("SIGKILL", "SIGHUP", "SIGPIPE", "SIGXFSZ")}
signal.Signals = enum.IntEnum("Signals", there)
from ort_gpu_ep.isolation import process
from ort_gpu_ep.placement.source import Source
assert process._FROM_OUTSIDE == (-signal.SIGTERM, -signal.SIGINT), process._FROM_OUTSIDE
source = Source(sys.argv[1])
with source.there() as path:
    assert path == sys.argv[1]
assert source._own is not None and not source._external
"""


def test_sessions_need_no_name_that_windows_lacks(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"location")
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(model)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr


def test_one_process_has_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("ab") as mine, path.open("ab") as other:
        store.lock(mine)
        with pytest.raises(OSError, match=r".*"):
            store.lock(other)
        mine.close()
        store.lock(other, wait=True)
