"""The doctor's processes: what a driver may do to them, exit codes, the report."""

from __future__ import annotations

import json
import math
import os
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.cli import app
from ort_gpu_ep.device.info import pick
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.health import bundle, enumeration, examination, helper, open_adapter, verdicts
from ort_gpu_ep.health.examination import examine, examine_at_once
from ort_gpu_ep.health.helper import list_adapters
from ort_gpu_ep.health.probe import PROBES
from ort_gpu_ep.health.verdicts import Verdict
from ort_gpu_ep.processes.child import starved_s

NAMES = ["enumeration", "softmax", "strided reads"]


@pytest.mark.parametrize(
    ("drill", "status", "seen"),
    [
        ("abort@softmax", "CRASH", "signal SIGABRT"),
        ("segfault@softmax", "CRASH", "signal SIGSEGV"),
        ("exit@softmax", "CRASH", "exit code 0"),
        ("wrong@softmax", "FAIL", "WrongResultError"),
    ],
)
def test_what_happens_to_a_worker_is_an_outcome(
    drill: str, status: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_GPU_EP_DRILL", drill)
    outcomes = {o.name: o for o in examine(0, NAMES, 1)}
    assert {n: o.status for n, o in outcomes.items()} == {
        "enumeration": "PASS",
        "softmax": status,
        "strided reads": "PASS",
    }
    assert seen in outcomes["softmax"].seen
    assert outcomes["softmax"].disables == ("softmax.wgsl",)
    assert outcomes["enumeration"].disables == ()


def test_a_known_fault_that_is_worked_around_fails_no_probe() -> None:
    """Mesa 22.3.6's llvmpipe rounds the number of subgroups down: quirks.json."""
    (outcome,) = examine(0, ["subgroups"], 1)
    assert outcome.status in ("PASS", "UNSUPPORTED"), outcome.seen


def test_a_dispatch_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault of the probe of long dispatches: the only one that needs a process of its own."""
    monkeypatch.setenv("ORT_GPU_EP_DRILL", "wrong@long dispatches")
    endless, after = examine(0, ["long dispatches", "enumeration"], 1)
    # llvmpipe ends every loop after 65,535 iterations: a wrong result
    assert endless.status in ("TIMEOUT", "FAIL")
    assert after.status == "PASS"


def test_a_probe_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GPU_EP_DRILL", "hang@softmax")
    monkeypatch.setitem(PROBES, "softmax", replace(PROBES["softmax"], timeout_s=1.0))
    outcomes = {o.name: o for o in examine(0, NAMES, 1)}
    assert {n: o.status for n, o in outcomes.items()} == {
        "enumeration": "PASS",
        "softmax": "TIMEOUT",
        "strided reads": "PASS",
    }
    assert outcomes["softmax"].seen == "no answer after 1 s"
    assert outcomes["softmax"].disables == ("softmax.wgsl",)


@pytest.mark.parametrize(
    ("drill", "status"), [("abort@softmax", "CRASH"), ("wrong@softmax", "FAIL"), ("hang@softmax", "TIMEOUT")]
)
def test_several_workers_at_once_find_the_same(drill: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that crashes or hangs is replaced, and keeps none of the others."""
    monkeypatch.setenv("ORT_GPU_EP_DRILL", drill)
    monkeypatch.setitem(PROBES, "softmax", replace(PROBES["softmax"], timeout_s=1.0))
    outcomes = {o.name: o for o in examine_at_once(0, [*NAMES, "gather"], 1, 2)}
    assert {n: o.status for n, o in outcomes.items()} == {
        "enumeration": "PASS",
        "softmax": status,
        "strided reads": "PASS",
        "gather": "PASS",
    }
    assert outcomes["softmax"].disables == ("softmax.wgsl",)


def test_workers_of_who_does_not_wait_any_more_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[helper.Worker]()

    class Noted(helper.Worker):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            begun.append(self)

    monkeypatch.setattr(examination, "Worker", Noted)
    outcomes = examine_at_once(0, NAMES, 1, 5)
    assert next(outcomes).name == "enumeration"
    outcomes.close()  # type: ignore[attr-defined]
    assert len(begun) == 3
    assert all(worker._process.returncode is not None for worker in begun)
    begun.clear()
    assert [o.status for o in examine_at_once(0, NAMES, 1, 2, budget_s=0.0)] == ["NOT_RUN"] * 3


def test_waiting_for_a_core_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that got no core for a part of its limit is given that part again, until it has had the whole; a
    deadline holds anyway."""
    worker, waited = helper.Worker.__new__(helper.Worker), list[float]()
    told = iter(
        [
            {"1": 5.0},
            {"1": 35.0, "2": 3.0},
            {"1": 35.0, "2": 3.0},
            {"1": 38.0, "2": 9.0},
            {"2": 9.0},
            {"2": 9.1},
            {},
            {},
            {},
            {"1": 9.0},
        ]
    )

    def line(timeout_s: float) -> None:
        waited.append(timeout_s)
        raise TimeoutError

    worker._process = SimpleNamespace(pid=7)  # type: ignore[assignment]
    worker.line = line  # type: ignore[assignment,method-assign]
    monkeypatch.setattr(helper, "starved_s", lambda pid: next(told))
    for deadline in (math.inf, math.inf, time.monotonic()):
        with pytest.raises(TimeoutError):
            worker.answer(30.0, deadline)
    assert waited[:-1] == pytest.approx([30.0, 30.0, 6.0, 30.0])
    assert waited[-1] <= 0.0
    assert next(told, None) is None


def test_what_threads_waited_for_a_core() -> None:
    """Where the system tells: threads that are gone are no error."""
    assert all(s >= 0.0 for s in starved_s(os.getpid()).values())
    assert starved_s(2**22 + 1) == {}


def test_the_budget_ends_a_probe_without_condemning_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GPU_EP_DRILL", "hang@softmax")
    outcomes = list(examine(0, ["softmax", "enumeration"], 1, budget_s=0.5))
    assert [o.status for o in outcomes] == ["NOT_RUN", "NOT_RUN"]
    assert all(o.disables == () for o in outcomes)


def test_a_driver_that_ends_the_process_when_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for fault, how in (("abort", "signal SIGABRT"), ("exit", "exit code 0")):
        monkeypatch.setenv("ORT_GPU_EP_DRILL", f"{fault}@enumerate")
        with pytest.raises(AdapterError, match=how):
            list_adapters()
    monkeypatch.setenv("ORT_GPU_EP_DRILL", "hang@enumerate")
    monkeypatch.setattr(helper, "START_S", 1.0)
    with pytest.raises(AdapterError, match="hangs"):
        list_adapters()


@pytest.mark.parametrize(
    ("drill", "code", "health"),
    [("", 0, "healthy"), ("exit@softmax", 1, "degraded"), ("abort@enumeration", 2, "unusable")],
)
def test_exit_codes(drill: str, code: int, health: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORT_GPU_EP_DRILL", drill)
    report = tmp_path / "r.zip"
    done = CliRunner().invoke(
        app, ["doctor", "--quick", "--json", "--report", str(report), "-o", f"cache_dir={tmp_path}"]
    )
    assert done.exit_code == code
    data = json.loads(done.stdout)
    assert data["health"] == health
    with zipfile.ZipFile(report) as file:
        assert json.loads(file.read("report.json"))["health"] == health


def test_a_quick_look_spares_the_first_session_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And takes nothing back that the full doctor has found."""
    key = verdicts.key_of(pick(list(enumeration.adapters()), ""))

    def look_quickly(drill: str) -> None:
        monkeypatch.setenv("ORT_GPU_EP_DRILL", drill)
        CliRunner().invoke(app, ["doctor", "--quick", "--json", "-o", f"cache_dir={tmp_path}"])

    look_quickly("exit@softmax")
    found = verdicts.read(str(tmp_path), key)
    assert found is not None
    assert (found.depth, [what for what, _ in found.disabled], found.strikes) == ("quick", ["softmax.wgsl"], 0)
    monkeypatch.setattr(open_adapter, "quick", lambda *given: pytest.fail("the session probes again"))
    assert open_adapter._verdict(pick(list(enumeration.adapters()), ""), key, str(tmp_path)) == found
    full = Verdict((("strided.wgsl", "probe 'strided reads': FAIL"),), "full", 2, trusted=("reduce",))
    verdicts.write(str(tmp_path), key, full)
    look_quickly("")
    assert verdicts.read(str(tmp_path), key) == full
    look_quickly("exit@softmax")
    found = verdicts.read(str(tmp_path), key)
    assert found is not None
    assert (found.depth, {what for what, _ in found.disabled}, found.strikes) == (
        "full",
        {"softmax.wgsl", "strided.wgsl"},
        2,
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/home/somebody", "<home>"),
        ("/home/Some Body", "<home>"),
        ("it is /home/somebody", "it is <home>"),
        ("C:\\Users\\Some Body", "<home>"),
        ("C:\\Users\\Some Body\\a b\\icd.json", ".../icd.json"),
        ("/home/Some Body/my drivers/icd.json is bad", ".../icd.json is bad"),
        ("/mnt/Some Body/icd.json:/usr/x.json", ".../icd.json:.../x.json"),
        ("file '/srv/Some Body/a.so': no such file", "file '.../a.so': no such file"),
        ("in /people/Ann Lee, as annlee", "in <home>, as <name>"),
        ("/people/Ann Lee/icd.json", "<home>/icd.json"),
        ("f32/f16 and 1/2", "f32/f16 and 1/2"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe (LLVM 15.0.6, 256 bits)"),
    ],
)
def test_names_of_people_are_left_out(text: str, want: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/people/Ann Lee")
    monkeypatch.setenv("USER", "annlee")
    assert bundle.shortened(text) == want


def test_ten_lines_for_an_issue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On one line each, without the user's name or folders; also where there is no adapter, which most issues are
    about."""
    monkeypatch.setenv("USER", "jdoe")
    monkeypatch.setenv("ORT_GPU_EP_CACHE_DIR", str(tmp_path / "jdoe"))
    monkeypatch.setenv("VK_LOADER_DEBUG", "none")
    done = CliRunner().invoke(app, ["doctor", "--quick", "--text"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    names = [line.partition(": ")[0] for line in done.stdout.splitlines()]
    assert names == [
        "versions",
        "system",
        "adapter",
        "other adapters",
        "features",
        "limits",
        "health",
        "failed",
        "known faults",
        "environment",
    ]
    text = done.stdout
    assert "ort-gpu-ep 0." in text
    assert "onnxruntime 1." in text
    assert "9 PASS" in text
    assert "VK_LOADER_DEBUG=none" in text
    assert "ORT_GPU_EP_CACHE_DIR=" in text
    assert "jdoe" not in text
    assert str(tmp_path.parent) not in text
    failing = {
        "versions": {"ort-gpu-ep": "1"},
        "adapters": [],
        "health": "unusable",
        "reason": "no GPU adapter: the reason\nin two lines",
    }
    lines = bundle.summary(failing)
    assert len(lines) == 10
    assert lines[2] == "adapter: no GPU adapter: the reason in two lines"
    probes = [
        {"name": "add", "status": "FAIL", "seen": "1 is not 2\nmore"},
        {"name": "mul", "status": "PASS", "seen": ""},
    ]
    assert bundle.summary({**failing, "probes": probes})[6:8] == [
        "health: unusable; 1 FAIL, 1 PASS",
        "failed: add (FAIL: 1 is not 2)",
    ]


def test_the_report_is_about_the_driver_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("VK_DRIVER_FILES", "/home/somebody/drivers/icd.json:C:\\Users\\Somebody\\b.json")
    monkeypatch.setenv("VK_LAYER_PATH", "/home/somebody:/home/Some Body:/home/Some Body/layers of Somebody/l.json")
    monkeypatch.setenv("VK_LOADER_DEBUG", "all")
    bundle.write(
        tmp_path / "r.zip",
        {
            "adapters": [{"uuid": "Body-5d1c"}],
            "probes": [{"seen": "/home/somebody/x/shader.wgsl is wrong"}, {"seen": ["/home/Sömebody"]}],
        },
    )
    with zipfile.ZipFile(tmp_path / "r.zip") as file:
        text = "".join(file.read(n).decode() for n in file.namelist())
    for kept in ("icd.json", '"VK_LOADER_DEBUG": "all"', "shader.wgsl is wrong"):
        assert kept in text
    for private in (
        "hunter2",
        "omebody",
        "Some",
        "Body",
        os.uname().nodename,
        str(tmp_path),
        os.environ.get("HOME", "/root") + "/",
    ):
        assert private not in text


@pytest.mark.parametrize("library", ["wgpu", "dawn"])
def test_a_quick_look_knows_as_much_as_the_first_session(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds spares sessions their own look: with Dawn a software adapter's matrix units, too."""
    asked: dict[str, list[str]] = {}

    def noting(who: str) -> Any:
        def examined(index: int, names: list[str], *rest: Any, **options: Any) -> Any:
            asked[who] = names
            return iter([])

        return examined

    monkeypatch.setattr(open_adapter, "KIND", library)
    monkeypatch.setattr("ort_gpu_ep.cli.doctor.examine", noting("doctor"))
    monkeypatch.setattr(examination, "examine", noting("session"))
    CliRunner().invoke(app, ["doctor", "--quick"])
    open_adapter.quick(pick(list(enumeration.adapters()), ""))
    assert sorted(asked["doctor"]) == sorted(asked["session"])
    assert any("matrix units" in name for name in asked["doctor"]) == (library == "dawn")
