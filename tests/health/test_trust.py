"""Which shaders run without bounds checks: by what probes have shown, by the option, and never where data gives the
indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import AdapterInfo, Gpu
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health import open_adapter, verdicts
from ort_gpu_ep.health.examination import Outcome
from ort_gpu_ep.health.probe import PROBES
from ort_gpu_ep.health.verdicts import Verdict, verdict_of
from ort_gpu_ep.health.worker import _both_ways
from ort_gpu_ep.kernels.records import FAMILIES, RECORDS, unchecked
from ort_gpu_ep.kernels.target import LAST_ARRIVING, SUBNORMAL_HALVES
from ort_gpu_ep.plugin import local
from ort_gpu_ep.webgpu import native
from tests.session.conftest import gpu_session
from tests.unit.graphs import model_of

PRODUCT, SOFTMAX, GATHER = "matrix product", "softmax", "gather"


def outcome(name: str, status: Any = "PASS", unchecked: bool = True) -> Outcome:
    return Outcome(
        name,
        "kernels",
        status,
        "",
        1.0,
        () if status == "PASS" else PROBES[name].disables,
        unchecked and status == "PASS",
    )


def test_a_family_is_trusted_by_all_of_its_probes_that_ran() -> None:
    assert verdict_of([outcome(PRODUCT), outcome(SOFTMAX)], "quick").trusted == ("elementwise", "product", "reduction")
    for status in ("FAIL", "CRASH", "TIMEOUT"):
        assert verdict_of([outcome(PRODUCT), outcome("reductions", status), outcome(SOFTMAX)], "full").trusted == (
            "elementwise",
            "product",
        )
    only_checked = outcome("reductions", unchecked=False)
    assert verdict_of([outcome(SOFTMAX), only_checked], "full") == Verdict((), "full", doubtful=("reduction",))
    for status in ("NOT_RUN", "UNSUPPORTED"):
        assert verdict_of([outcome(SOFTMAX), replace(only_checked, status=status)], "full").trusted == ("reduction",)
    assert verdict_of([outcome(SOFTMAX), outcome("f32 arithmetic", "FAIL")], "full").trusted == (), (
        "an adapter that can't add"
    )


@pytest.mark.parametrize(
    ("probe", "feature"), [("last arriving workgroup", LAST_ARRIVING), ("subnormal float16", SUBNORMAL_HALVES)]
)
def test_what_no_adapter_promises_is_there_only_where_it_was_shown(probe: str, feature: str) -> None:
    """A first use that runs out of time says nothing of it, and the adapter is no worse for that."""
    for status, shown in (("PASS", (feature,)), ("NOT_RUN", ()), ("UNSUPPORTED", ()), ("FAIL", ())):
        verdict = verdict_of([Outcome(probe, "kernels", status)], "quick")
        assert verdict.shown == shown
        assert verdict.health == "healthy"


@pytest.mark.parametrize("shown", [(LAST_ARRIVING,), ()])
def test_an_adapter_has_what_was_shown(shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=gpu.limits.features - {LAST_ARRIVING}))
    monkeypatch.setattr(open_adapter, "_verdict_once", lambda info, cache, uses: Verdict(shown=shown))
    assert (LAST_ARRIVING in open_adapter.open_gpu(Config()).limits.features) == bool(shown)


def test_a_verdict_names_the_shaders_that_need_no_checks() -> None:
    """So that a process that reads it loads no rows."""
    found = verdict_of([outcome(PRODUCT), outcome(SOFTMAX)], "quick")
    assert frozenset(found.unchecked) == unchecked(found.trusted)
    assert "gemm.wgsl" in found.unchecked


def test_trust_is_remembered(tmp_path: Path) -> None:
    verdict = Verdict((), "quick", trusted=("product", "reduction"), shown=(LAST_ARRIVING,), unchecked=("gemm.wgsl",))
    verdicts.write(str(tmp_path), "k", verdict)
    assert verdicts.read(str(tmp_path), "k") == verdict


def test_what_reads_indices_is_never_unchecked() -> None:
    found = unchecked(FAMILIES)
    assert {"gemm.wgsl", "softmax.wgsl", "gather.wgsl"} <= found
    assert found == {shader for shader, record in RECORDS.items() if not record.data_indices}
    assert "scatter_replace.wgsl" not in found
    assert unchecked(()) == frozenset()


@pytest.mark.parametrize(
    ("fails", "status", "trust", "tries"),
    [("never", "PASS", True, 1), ("unchecked", "PASS", False, 2), ("always", "FAIL", False, 2)],
)
def test_a_probe_that_fails_without_checks_is_repeated_with_them(
    fails: str, status: str, trust: bool, tries: int
) -> None:
    gpu, seen = SimpleNamespace(info=SimpleNamespace(is_software=False), trusted=frozenset(), lost=""), []

    def check(trial: Any) -> str:
        seen.append(gpu.trusted)
        if fails == "always" or (fails == "unchecked" and gpu.trusted):
            raise WrongResultError("element [0]")
        return "a shape"

    found = _both_ways(gpu, check, lambda: SimpleNamespace(shaders={"softmax.wgsl"}))
    assert (found["status"], found["unchecked"], found["shaders"]) == (status, trust, ["softmax.wgsl"])
    assert seen == [unchecked(FAMILIES), frozenset()][:tries]
    assert ("only with bounds checks" in str(found["seen"])) == (fails == "unchecked")


def test_a_software_adapter_keeps_its_checks() -> None:
    gpu = SimpleNamespace(info=SimpleNamespace(is_software=True), trusted=frozenset(), lost="")
    found = _both_ways(gpu, lambda trial: "a shape", lambda: SimpleNamespace(shaders=set()))
    assert (found["status"], found["unchecked"], gpu.trusted) == ("PASS", False, frozenset())
    assert not PROBES["pool"].is_quick(software=True)
    assert PROBES["pool"].is_quick(software=False)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """Opens a session; gives the labels of its modules without checks."""
    made, labels = native.trusted_module, set[str]()
    monkeypatch.setattr(
        native,
        "trusted_module",
        lambda device, label, code: labels.add(code.split(".wgsl")[0].split()[-1]) or made(device, label, code),
    )
    model = model_of(
        "(float[7, 9] x, int64[3] i) => (float[3, 9] y, float[7, 9] z) { s = Softmax(x) z = Tanh(x) y = Gather(s, i) }"
    )

    def open_it(**options: object) -> set[str]:
        labels.clear()
        session = gpu_session(model.SerializeToString(), **options)
        gpu = session.state.gpu
        gpu.pipelines._recent.clear()  # of sessions before this one
        del session
        session = gpu_session(model.SerializeToString(), **options)
        session.run(None, {"x": np.zeros((7, 9), "f"), "i": np.array([0, 6, 3])})
        return set(labels)

    return open_it


def test_the_option(opened: Callable[..., set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "trusted", unchecked(["reduction", "gather"]) - {"gather.wgsl"})
    assert opened() == {"softmax"}
    assert opened(checked_shaders=1) == set()
    assert opened(checked_shaders=0) >= {"softmax", "gather", "elementwise"}
    monkeypatch.setattr(gpu, "trusted", frozenset())
    assert opened() == set()


@pytest.mark.parametrize("software", [False, True])
def test_a_verdict_gives_trust_to_hardware(software: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "trusted", frozenset())
    unchecked_files = tuple(sorted(unchecked(["product"])))
    monkeypatch.setattr(
        open_adapter,
        "_verdict_once",
        lambda info, cache, uses: Verdict(trusted=("product",), unchecked=unchecked_files),
    )
    monkeypatch.setattr(AdapterInfo, "is_software", software)
    assert open_adapter.open_gpu(Config()).trusted == (frozenset() if software else unchecked(["product"]))


@pytest.mark.parametrize(
    ("option", "trusted", "software", "said"),
    [
        ("auto", (), False, True),
        ("auto", ("product",), False, False),
        ("1", (), False, False),
        ("auto", (), True, False),
    ],
)
def test_a_session_that_checks_all_says_so(
    option: str, trusted: tuple[str, ...], software: bool, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(info=SimpleNamespace(is_software=software), trusted=unchecked(trusted), workarounds=())
    monkeypatch.setattr(local, "open_gpu", lambda config: gpu)
    assert (local.ALL_CHECKED in local.open_backend(Config(checked_shaders=option)).notices) == said
