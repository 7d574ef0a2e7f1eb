"""What one failed look at the adapters means for later programs: what a driver did is kept for a while, a failure of
our own is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.health import enumeration, helper
from ort_gpu_ep.health.examination import examine
from ort_gpu_ep.health.helper import HelperError, list_adapters
from ort_gpu_ep.processes import child

DRILL = "ORT_GPU_EP_DRILL"


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has not looked yet."""
    monkeypatch.setattr(enumeration, "_seen", None)
    return


def kept(cache: Path) -> list[dict[str, object]]:
    return [json.loads(p.read_text()) for p in cache.rglob("drivers-*.json")]


def starts(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    monkeypatch.setattr(helper, "command", lambda module: list(command))


OWN = {
    "exits": [sys.executable, "-c", "raise SystemExit(1)"],
    "is none": [sys.executable, "/no/such/script.py"],
    "is killed": ["sh", "-c", "kill -9 $$"],
    "lacks a package": [
        sys.executable,
        "-c",
        "import sys; sys.modules['ort_gpu_ep.device'] = None; import runpy; "
        "runpy.run_module('ort_gpu_ep.health.worker', run_name='__main__')",
    ],
}


@pytest.mark.parametrize("name", OWN)
def test_a_failure_of_our_own_is_named_and_not_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, real, now = Config(cache_dir=str(tmp_path)), helper.command, time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    starts(monkeypatch, *OWN[name])
    with pytest.raises(AdapterError, match="the process that looks for GPU adapters") as raised:
        enumeration.look(config)
    assert "no fault of a driver" in str(raised.value)
    assert "Update or remove a GPU driver" not in str(raised.value)
    assert kept(tmp_path) == []
    monkeypatch.setattr(helper, "command", real)
    with pytest.raises(AdapterError):  # of this process, for some seconds
        enumeration.look(config)
    later = now + enumeration.OWN_PAUSE_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert enumeration.look(config)


def test_a_limit_on_memory_is_no_fault_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    line = child.command("ort_gpu_ep.health.worker")
    starts(monkeypatch, "sh", "-c", 'ulimit -v 60000; exec "$@"', "sh", *line)
    with pytest.raises(HelperError):
        list_adapters()


def test_a_probe_condemns_nothing_where_the_worker_fails_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    starts(monkeypatch, sys.executable, "-c", "raise SystemExit(1)")
    assert [(o.status, o.disables) for o in examine(0, ["softmax"], 1)] == [("NOT_RUN", ())]


def test_what_a_driver_did_is_kept_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, now = Config(cache_dir=str(tmp_path)), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setenv(DRILL, "abort@enumerate")
    for failures, pause_s in ((1, 60.0), (2, 120.0), (3, 240.0)):
        monkeypatch.setattr(enumeration, "_seen", None)
        with pytest.raises(AdapterError, match=f"signal SIGABRT.*failed {failures} times in a row.*look again"):
            enumeration.look(config)
        (data,) = kept(tmp_path)
        assert (data["failures"], data["until_s"]) == (failures, now + pause_s)
        with monkeypatch.context() as patch:  # a later process, before that
            patch.setattr(enumeration, "_seen", None)
            patch.setattr(enumeration, "list_adapters", lambda: pytest.fail("it looks too early"))
            with pytest.raises(AdapterError, match=f"failed {failures} times"):
                enumeration.look(config)
        now += pause_s + 1
    # the same process looks again, too; the driver is well now, though it is the same by its files
    monkeypatch.setattr(
        enumeration,
        "list_adapters",
        lambda: [
            {
                "index": 0,
                "name": "n",
                "type": "discrete",
                "backend": "Vulkan",
                "driver": "d",
                "vendor_id": 1,
                "device_id": 2,
            }
        ],
    )
    assert [a.name for a in enumeration.look(config)] == ["n"]
    assert [(d["trouble"], d["failures"]) for d in kept(tmp_path)] == [("", 0)]


def test_the_pause_has_an_end() -> None:
    assert enumeration._pause_s(10**6) == enumeration.LONGEST_PAUSE_S
    assert not enumeration.Sight(trouble="x", failures=1, until_s=time.time() + 1e9).holds
    assert not enumeration.Sight(trouble="x", failures=1, until_s=-1e300).holds


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """What a helper was started in is no reason to fail."""
    code = (
        "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)\n"
        "from ort_gpu_ep.health.helper import list_adapters; print(len(list_adapters()))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=dict(os.environ),
    )
    assert int(done.stdout) >= 1, done.stderr
