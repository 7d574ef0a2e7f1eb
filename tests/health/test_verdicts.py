"""Verdicts: what a failed probe puts out of use, the claim that respects it, the cache, and markers of unclean
exits."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import Code
from ort_gpu_ep.health import drivers, enumeration, examination, markers, open_adapter, verdicts
from ort_gpu_ep.health.examination import Outcome
from ort_gpu_ep.health.verdicts import Verdict, verdict_of
from ort_gpu_ep.kernels.registry import ADAPTER, PACKED, WORKGROUP, Limits
from ort_gpu_ep.partitioner import partition
from ort_gpu_ep.webgpu import loader_paths
from tests.unit.graphs import graph_of

ROOT = Path(__file__).parents[2]
BAD = Outcome("softmax", "kernels", "FAIL", "element [0]", 1.0, ("softmax.wgsl",))


# ---- what follows from an outcome


def test_health() -> None:
    assert verdict_of([Outcome("a", "g", "PASS"), Outcome("b", "g", "UNSUPPORTED")], "full") == Verdict((), "full")
    degraded = verdict_of([BAD, replace(BAD, name="later")], "quick")
    assert degraded.disabled == (("softmax.wgsl", "probe 'softmax': FAIL (element [0])"),)
    assert degraded.health == "degraded"
    assert verdict_of([replace(BAD, disables=(ADAPTER,), status="CRASH")], "quick").health == "unusable"
    assert verdict_of([replace(BAD, status="NOT_RUN")], "quick").health == "healthy"


MODEL = (
    "(float[8, 8] x, int8[8] b) => (float[8, 8] s, bool[8, 8] l, int8[8] t) "
    "{ s = Softmax(x) n = Neg(x) l = Less(n, x) t = Neg(b) }"
)


@pytest.mark.parametrize(
    ("what", "declined"),
    [
        ("softmax.wgsl", {"Softmax"}),
        ("elementwise.wgsl", {"Neg", "Less"}),
        (WORKGROUP, {"Softmax"}),
        (PACKED, {"Less", "Neg"}),
        ("gemm.wgsl", set()),
        ("shader-f16", set()),
    ],
)
def test_claim_respects_a_verdict(what: str, declined: set[str]) -> None:
    limits = Limits(disabled=((what, "probe 'p': FAIL"),))
    report = partition(graph_of(MODEL), Config(placement="gpu", fusion=False), limits, False).report
    found = {n.op: n for n in report.nodes if n.code == Code.DRIVER}
    assert set(found) == declined
    assert all(f"{what} is not used on this adapter: probe 'p': FAIL" in n.reason for n in found.values())


def test_claim_respects_a_feature() -> None:
    graph = graph_of("(float16[8] x) => (float16[8] y) { y = Exp(x) }")
    limits = Limits(frozenset({"shader-f16"}), disabled=(("shader-f16", "probe 'f16 arithmetic': FAIL"),))
    (node,) = partition(graph, Config(placement="gpu"), limits, False).report.nodes
    assert node.code == Code.DRIVER


# ---- the cache


def test_cache_gives_back_what_was_written(tmp_path: Path) -> None:
    verdict = Verdict((("softmax.wgsl", "why"),), "full", 2)
    verdicts.write(str(tmp_path), "k", verdict)
    assert verdicts.read(str(tmp_path), "k") == verdict
    assert verdicts.read(str(tmp_path), "other") is None
    assert [p.name for p in (tmp_path / "health").iterdir()] == ["k.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', '{"format": 1, "disabled": []}', "\0\1"])
def test_a_broken_cache_is_said_and_ignored(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "health").mkdir()
    (tmp_path / "health" / "k.json").write_text(content)
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        assert verdicts.read(str(tmp_path), "k") is None
    assert len(caplog.records) == 1
    assert "is ignored and made anew" in caplog.text


def test_a_cache_that_cant_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    where = str(tmp_path / "file")
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        verdicts.write(where, "k", Verdict())
        markers.leave(where, "k")
        assert verdicts.read(where, "k") is None
        assert markers.take_stale(where, "k") == 0
    assert "can't be written" in caplog.text
    assert "no marker" in caplog.text


def test_the_key_depends_on_driver_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    info = Gpu.open(Config()).info
    keys = {
        verdicts.key_of(info),
        verdicts.key_of(replace(info, driver="other")),
        verdicts.key_of(replace(info, device_id=99)),
    }
    monkeypatch.setattr(verdicts, "code_hash", lambda: "0")
    assert len(keys | {verdicts.key_of(info)}) == 4


# ---- markers


@pytest.fixture
def forget() -> Iterator[None]:
    """As in a new process: no verdict known, no mask on the shared device."""
    gpu = Gpu.open(Config())
    limits, known = gpu.limits, dict(open_adapter._known)
    open_adapter._known.clear()
    yield
    gpu.limits = limits
    open_adapter._known.clear()
    open_adapter._known.update(known)
    markers.remove_mine()


def alone(code: str) -> None:
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300, check=False
    )


def test_a_clean_exit_leaves_no_marker_and_a_kill_does(tmp_path: Path) -> None:
    leave = f"from ort_gpu_ep.health import markers; markers.leave({str(tmp_path)!r}, 'k')"
    alone(leave)
    assert markers.take_stale(str(tmp_path), "k") == 0
    alone(leave + "; import os; os.kill(os.getpid(), 9)")
    assert markers.take_stale(str(tmp_path), "k") == 1
    assert markers.take_stale(str(tmp_path), "k") == 0


def test_processes_of_multiprocessing_leave_no_marker(tmp_path: Path) -> None:
    alone(
        "import multiprocessing as m\nfrom ort_gpu_ep.health import markers\n"
        f"p = m.get_context('fork').Process(target=markers.leave, args=({str(tmp_path)!r}, 'k'))\np.start(); p.join()"
    )
    assert list((tmp_path / "health").iterdir()) == []


def test_markers_of_live_processes_stay(tmp_path: Path) -> None:
    markers.leave(str(tmp_path), "k")
    markers.leave(str(tmp_path), "k")
    assert len(list((tmp_path / "health").iterdir())) == 1
    assert markers.take_stale(str(tmp_path), "k") == 0
    markers.remove_mine()
    assert list((tmp_path / "health").iterdir()) == []


# ---- the first use of an adapter


def test_first_use_probes_once_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture, forget: None) -> None:
    config = Config(cache_dir=str(tmp_path))
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        gpu = open_adapter.open_gpu(config)
        assert gpu.limits.disabled == ()
        assert "first use, probed in" in caplog.text
        caplog.clear()
        open_adapter._known.clear()
        assert open_adapter.open_gpu(config) is gpu
        assert caplog.text == ""


def test_a_second_cache_folder_gets_the_verdict_and_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None
) -> None:
    """What one session's folder has, the next process finds in another session's, too."""
    key = verdicts.key_of(open_adapter.open_gpu(Config(cache_dir=str(tmp_path / "one"))).info)
    monkeypatch.setattr(open_adapter, "quick", lambda *arguments: pytest.fail("it was probed in this process"))
    open_adapter.open_gpu(Config(cache_dir=str(tmp_path / "two")))
    assert verdicts.read(str(tmp_path / "two"), key) == verdicts.read(str(tmp_path / "one"), key) is not None
    assert len(list((tmp_path / "two" / "health").glob("*.open"))) == 1


def test_a_marker_of_another_process_with_the_same_number_is_stale(tmp_path: Path) -> None:
    """The process that left it lived then; this one was started later."""
    for left, stale in ((time.time(), 0), (1.0, 1)):
        (tmp_path / "health").mkdir(exist_ok=True)
        marker = tmp_path / "health" / "key.1-0.open"
        marker.write_text(json.dumps({"pid": os.getpid(), "left": left}))
        assert markers.take_stale(str(tmp_path), "key") == stale
        assert marker.exists() != bool(stale)


def test_a_marker_of_this_process_is_not_stale(tmp_path: Path) -> None:
    markers.leave(str(tmp_path), "key")
    assert markers.take_stale(str(tmp_path), "key") == 0
    markers.remove_mine()


def test_probes_again_after_an_unclean_exit(tmp_path: Path, caplog: pytest.LogCaptureFixture, forget: None) -> None:
    key = verdicts.key_of(Gpu.open(Config()).info)
    verdicts.write(str(tmp_path), key, Verdict((("softmax.wgsl", "probe 'softmax': FAIL"),), "full"))
    (tmp_path / "health" / f"{key}.1-0.open").write_text(json.dumps({"pid": 2**22 + 1, "left": 0}))
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        gpu = open_adapter.open_gpu(Config(cache_dir=str(tmp_path)))
    assert "did not end cleanly (1 so far)" in caplog.text
    assert [what for what, _ in gpu.limits.disabled] == ["softmax.wgsl"]  # what the doctor found stays
    stored = verdicts.read(str(tmp_path), key)
    assert stored is not None
    assert (stored.strikes, stored.depth) == (1, "full")


def test_what_had_no_time_at_first_use_is_looked_at_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each process has what either look has shown, and none looks again."""
    info = Gpu.open(Config()).info
    first = Verdict((("softmax.wgsl", "it failed"),), shown=("subnormal-float16",), complete=False)
    looks = [first, Verdict(shown=("matrix-units",), complete=False)]
    monkeypatch.setattr(open_adapter, "quick", lambda *given: looks.pop(0))
    shown = [open_adapter._verdict(info, "key", str(tmp_path)).shown for _ in range(3)]
    assert shown == [
        ("subnormal-float16",),
        ("matrix-units", "subnormal-float16"),
        ("matrix-units", "subnormal-float16"),
    ]
    stored = verdicts.read(str(tmp_path), "key")
    assert stored is not None
    assert (stored.disabled, stored.strikes) == ((("softmax.wgsl", "it failed"),), 0)


def test_a_look_that_runs_out_of_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [Outcome("softmax", "kernels", "PASS"), Outcome("matrix units", "kernels", "NOT_RUN", "the time is up")]
    monkeypatch.setattr(examination, "examine", lambda *given, **named: outcomes)
    assert not open_adapter.quick(Gpu.open(Config()).info).complete
    outcomes.pop()
    assert open_adapter.quick(Gpu.open(Config()).info).complete


def test_a_fault_found_at_first_use_is_not_used(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    forget: None,
) -> None:
    monkeypatch.setenv("ORT_GPU_EP_DRILL", "abort@softmax")
    gpu = open_adapter.open_gpu(Config(cache_dir=str(tmp_path)))
    assert gpu.limits.disabled == (("softmax.wgsl", "probe 'softmax': CRASH (signal SIGABRT)"),)
    assert "softmax.wgsl is not used" in caplog.text


def test_health_off_probes_nothing(tmp_path: Path, forget: None) -> None:
    open_adapter.open_gpu(Config(cache_dir=str(tmp_path), health="off"))
    assert list(tmp_path.iterdir()) == []


def test_where_no_process_can_be_started_nothing_is_disabled(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    forget: None,
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        assert open_adapter.open_gpu(Config(cache_dir=str(tmp_path))).limits.disabled == ()
    assert "no process can be started" in caplog.text
    assert verdicts.read(str(tmp_path), verdicts.key_of(Gpu.open(Config()).info)) is None


# ---- the cache of what drivers are like


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 99}', '{"format": 1, "adapters": 3}', '{"format": 1, "adapters": [{"x": 1}]}', "\0\1"],
)
def test_a_broken_cache_of_drivers_is_said_and_made_anew(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sight = enumeration.look_again(str(tmp_path))
    (file,) = (tmp_path / "health").iterdir()
    assert enumeration._cached(str(tmp_path)) == sight
    file.write_text(content)
    with caplog.at_level(logging.INFO, "ort_gpu_ep"):
        assert enumeration._cached(str(tmp_path)) is None
    assert f"{file} is ignored and made anew" in caplog.text


def test_a_fingerprint_changes_with_its_drivers(tmp_path: Path) -> None:
    library, manifest = tmp_path / "libdriver.so", tmp_path / "icd.json"
    library.write_bytes(b"1")
    manifest.write_text(json.dumps({"ICD": {"library_path": "./libdriver.so"}}))
    environment = {"VK_DRIVER_FILES": str(manifest)}
    seen = [drivers.fingerprint(environment)]
    assert drivers.fingerprint(environment) == seen[0]
    # no other driver by that
    assert drivers.fingerprint({**environment, "MESA_SHADER_CACHE_DIR": "/elsewhere"}) == seen[0]
    library.write_bytes(b"22")
    seen.append(drivers.fingerprint(environment))
    manifest.write_text(json.dumps({"ICD": {"library_path": "libc.so.6"}}))
    seen.append(drivers.fingerprint(environment))
    seen.append(drivers.fingerprint({**environment, "MESA_LOG": "1"}))
    seen.append(drivers.fingerprint({"VK_DRIVER_FILES": str(tmp_path / "nothing.json")}))
    manifest.write_bytes(b"\xff[]")
    seen.append(drivers.fingerprint(environment))
    assert len(set(seen)) == len(seen)


def test_manifests_are_searched_where_the_loader_does(tmp_path: Path) -> None:
    for folder in ("a/vulkan/icd.d", "b/vulkan/icd.d"):
        (tmp_path / folder).mkdir(parents=True)
    first, second, added = tmp_path / "a/vulkan/icd.d/x.json", tmp_path / "b/vulkan/icd.d/y.json", tmp_path / "z.json"
    first.touch()
    second.touch()
    environment = {
        "XDG_CONFIG_HOME": str(tmp_path / "a"),
        "XDG_DATA_DIRS": str(tmp_path / "b"),
        "VK_ADD_DRIVER_FILES": str(added),
    }
    found = loader_paths.manifests(environment)
    assert found[0] == added
    assert [p for p in found if tmp_path in p.parents] == [added, first, second]
    assert loader_paths.manifests({**environment, "VK_ICD_FILENAMES": str(second)}) == (added, second)
