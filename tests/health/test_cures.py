"""A probe that fails is tried again with the rewriting of shaders that is its cure: for drivers that nobody has
listed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.cli import app, doctor
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.info import pick
from ort_gpu_ep.drills.faults import maker
from ort_gpu_ep.health import enumeration, examination, open_adapter, verdicts
from ort_gpu_ep.health.examination import Outcome, examine
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.health.probe import PROBES, Probe, Trial
from ort_gpu_ep.health.verdicts import Verdict, verdict_of
from ort_gpu_ep.health.worker import DONE, Cures, _both_ways
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.shaders.rewriting import REWRITINGS
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.objects import Device
from tests.device.test_rewriting import FAULTS

OF = {probe.cure: probe.name for probe in PROBES.values() if probe.cure}
"""Cure -> probe."""

COMPILED_WRONG = {name: PROBES[probe].fault for name, probe in OF.items()} | {
    name: FAULTS[name][1] for name in ("plain_dots", "counted_subgroups")
}
"""Cure -> what a driver does that needs it: those of its probe, but where that would be wrong in any text."""

SIGNS = ("sign_bits", "probe 'minus and abs' fails without it: wrong")
_seeds = itertools.count(700)


class Driver:
    """A device of its own behind a compiler with these faults (pattern, replacement), and what its probes say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = Config(faults=f"slow@1x;seed={next(_seeds)}")
        self.gpu, self.faults, self.runs = Gpu.open(config, maker(config)), list[Any](), list[str]()
        trusted, checked = native.trusted_module, Device.create_shader_module
        monkeypatch.setattr(
            native, "trusted_module", lambda device, label, code: trusted(device, label, self.spoilt(code))
        )
        monkeypatch.setattr(
            Device, "create_shader_module", lambda device, label, code: checked(device, label, self.spoilt(code))
        )
        self.cures = Cures(self.gpu, self.check, lambda: None)

    def spoilt(self, code: str) -> str:
        for pattern, replacement in self.faults:
            code = re.sub(pattern, replacement, code)
        return code

    def check(self, probe: Probe) -> dict[str, object]:
        self.runs.append(probe.name)
        return _both_ways(self.gpu, probe.check, lambda: Trial(self.gpu, np.random.default_rng(7)))

    def probed(self, name: str) -> dict[str, object]:
        said = self.check(PROBES[name])
        if said["status"] == "FAIL":
            said = self.cures.tried(PROBES[name], said, lambda: self.check(PROBES[name]))
        return said


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_each_rewriting_is_the_cure_of_one_probe() -> None:
    assert set(OF) == set(REWRITINGS)
    assert len(OF) == sum(bool(probe.cure) for probe in PROBES.values())


@pytest.mark.parametrize("cure", OF)
def test_a_probe_that_passes_with_its_cure_has_passed(cure: str, driver: Driver) -> None:
    if cure == "counted_subgroups" and "subgroup" not in driver.gpu.limits.features:
        assert driver.probed(OF[cure])["status"] == "UNSUPPORTED"
        return
    driver.faults = [COMPILED_WRONG[cure]]
    said = driver.probed(OF[cure])
    assert said["status"] == "PASS", said
    assert f"; only with {cure}, without: WrongResultError" in str(said["seen"])
    assert driver.gpu.rewritings == {cure}
    ((name, why),) = driver.cures.news()
    assert name == cure
    assert why.startswith(f"probe '{OF[cure]}' fails without it: WrongResultError: ")
    assert driver.cures.news() == []
    assert driver.runs == [OF[cure]] * 3, "without, with, and without once more"


def test_a_cure_that_does_not_help_is_left_out(driver: Driver) -> None:
    driver.faults = [(r"bitcast<f32>\(x\)", "bitcast<f32>(x + 1u)")]
    said = driver.probed("minus and abs")
    assert said["status"] == "FAIL"
    assert "only with" not in str(said["seen"])
    assert (driver.gpu.rewritings, driver.cures.news()) == (frozenset(), [])


def test_a_kernel_that_fails_asks_what_is_curable(driver: Driver) -> None:
    """At the first use of an adapter those probes don't run by themselves. They are asked once."""
    driver.gpu.rewritings = frozenset({"counted_subgroups"})  # lavapipe before Mesa 23 needs it by itself
    driver.faults = [COMPILED_WRONG["opaque_divisors"], FAULTS["opaque_divisors"][1]]
    said = driver.probed("strided reads")
    assert said["status"] == "PASS", said
    assert "; only with opaque_divisors, without: " in str(said["seen"])
    assert [name for name, _ in driver.cures.news()] == ["opaque_divisors"]
    assert driver.probed(OF["opaque_divisors"])["status"] == "PASS"
    driver.faults.append((r"\bmax\(", "min("))
    runs = len(driver.runs)
    assert driver.probed("softmax")["status"] == "FAIL"
    assert driver.runs[runs:] == ["softmax"]


def test_what_fails_now_and_then_is_not_cured() -> None:
    """Of a probe that passes by itself the next time, its cure's run says nothing."""
    probe, said = PROBES["minus and abs"], iter(({"status": "PASS", "seen": ""},) * 2)
    gpu = SimpleNamespace(rewritings=frozenset[str](), lost=False)
    cures = Cures(gpu, lambda probe: next(said), lambda: None)
    failed: dict[str, object] = {"status": "FAIL", "seen": "element [0]"}
    assert cures.tried(probe, failed, lambda: next(said)) is failed
    assert next(said, None) is None
    assert (gpu.rewritings, cures.news()) == (frozenset(), [])


def test_the_next_worker_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[dict[str, Any]] = []
    line = {"seen": "", "time_ms": 1.0, "unchecked": False, "cures": []}
    lines = [
        [
            {"touches": "drivers"},
            {"start": "minus and abs"},
            {"name": "minus and abs", "status": "PASS", **line, "cures": [list(SIGNS)]},
            {"start": "softmax"},
            None,
        ],
        [{"touches": "drivers"}, {"start": "elementwise"}, {"name": "elementwise", "status": "PASS", **line}, None],
    ]

    class Process:
        touches = True

        def __init__(self, job: dict[str, Any]) -> None:
            jobs.append(job)
            self._lines, self._code = iter(lines[len(jobs) - 1]), (-11, DONE)[len(jobs) - 1]

        def answer(self, limit_s: float, deadline: float) -> Any:
            return next(self._lines)

        def end(self, kill: bool = False) -> int:
            return self._code

    monkeypatch.setattr(examination, "Worker", Process)
    outcomes = list(examine(0, ["minus and abs", "softmax", "elementwise"], 1))
    assert [o.status for o in outcomes] == ["PASS", "CRASH", "PASS"]
    assert [job["cures"] for job in jobs] == [[], ["sign_bits"]]
    verdict = verdict_of(outcomes, "quick")
    assert verdict.cures == (SIGNS,)
    assert [what for what, _ in verdict.disabled] == ["softmax.wgsl"]


def test_verdicts_keep_it(tmp_path: Path) -> None:
    cured, other = Verdict(cures=(SIGNS,), depth="full"), Verdict(cures=(("plain_dots", "why"),))
    assert cured.health == "healthy"
    verdicts.write(str(tmp_path), "key", cured)
    assert verdicts.read(str(tmp_path), "key") == cured
    verdicts.write(str(tmp_path), "key", Verdict(cures=(("hang_timeout_ms", "somebody else wrote it"),)))
    assert verdicts.read(str(tmp_path), "key") is None
    for both in (verdicts.joined(cured, other), verdicts.added(other, cured)):
        assert dict(both.cures) == dict(cured.cures) | dict(other.cures)
    unfinished = Verdict(cures=(SIGNS,), complete=False)
    assert dict(verdicts.added(other, unfinished).cures) == dict(cured.cures) | dict(other.cures)


def test_a_session_has_it_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a driver that gets what a probe looks for wrong, in its process."""
    monkeypatch.setenv("ORT_GPU_EP_DRILL", "miscompile@minus and abs")
    monkeypatch.setattr(open_adapter, "_known", {})  # another test of this process may have opened the adapter
    monkeypatch.setattr(open_adapter, "_tried", set())
    (outcome,) = examine(0, ["minus and abs"], 1)
    assert outcome.status == "PASS", outcome.seen
    info = pick(list(enumeration.adapters()), "")
    verdicts.write(str(tmp_path), verdicts.key_of(info), verdict_of([outcome], "full"))
    config = Config(cache_dir=str(tmp_path), faults=f"slow@1x;seed={next(_seeds)}")
    gpu = open_gpu(config, lambda device: ())
    assert "sign_bits" in gpu.rewritings
    (told,) = [str(w) for w in gpu.workarounds if w.name == "sign_bits"]
    assert told.startswith("sign_bits=1: probe 'minus and abs' fails without it: WrongResultError: ")


@pytest.mark.parametrize("form", ["--json", "--text", ""])
def test_the_doctor_says_so(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def examined(chosen: Any, quick: bool, rounds: int, device: examination.Device) -> list[Outcome]:
        device.limits = dataclasses.asdict(Limits())
        return [Outcome("minus and abs", "arithmetic", "PASS", "all equal", cures=(SIGNS,))]

    monkeypatch.setattr(doctor, "_examine", examined)
    done = CliRunner().invoke(app, ["doctor", "--quick", *([form] if form else []), "-o", f"cache_dir={tmp_path}"])
    assert done.exit_code == 0, done.output
    if form == "--json":
        told = {"what": "sign_bits", "value": 1, "why": SIGNS[1]}
        assert told in json.loads(done.stdout)["workarounds"]
    elif form:
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("known faults: ")]
        assert "sign_bits" in line
    else:
        assert f"workaround from now on: sign_bits: {SIGNS[1]}" in " ".join(done.stdout.split())
    kept = verdicts.read(str(tmp_path), verdicts.key_of(pick(list(enumeration.adapters()), "")))
    assert kept is not None
    assert kept.cures == (SIGNS,)
