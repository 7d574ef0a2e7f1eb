"""Workarounds of quirks: each takes effect in a session, is safer than what was asked for, and is told."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ort_gpu_ep
from ort_gpu_ep.cli import app
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import pipelines
from ort_gpu_ep.errors import ConfigError, UnsupportedNodeError
from ort_gpu_ep.health import workarounds
from ort_gpu_ep.health.quirks import parse
from ort_gpu_ep.health.workarounds import NAMES, Workaround, lowered, with_workarounds
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.shaders.composer import folded
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.objects import Device
from tests.unit.graphs import model_of

ENTRY: dict[str, Any] = {"what": "it hangs", "bug": "https://example.org/2", "probe": "softmax"}
TEXT = "(float[N, 64] x) => (float[N, 64] y) { h = MatMul(x, w) r = Relu(h) s = Softmax(r) t = Tanh(s) y = Neg(t) }"
_seeds = itertools.count(500)

Opened = Callable[..., Any]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """A session that has run, on a device of its own, with these workarounds; `right` says whether its results were."""
    w = np.random.default_rng(1).standard_normal((64, 64)).astype("f") / 8

    def open_it(found: dict[str, str], rows: int = 70, **options: object) -> Any:
        (tmp_path / "quirks.json").write_text(json.dumps([{**ENTRY, "workarounds": found}] if found else []))
        session = ort_gpu_ep.InferenceSession(
            model_of(TEXT, {"w": w}).SerializeToString(),
            provider_options={
                "placement": "gpu",
                "health": "off",
                "quirks": str(tmp_path / "quirks.json"),
                "faults": f"slow@1x;seed={next(_seeds)}",
                **options,
            },
        )
        x = np.random.default_rng(2).standard_normal((rows, 64)).astype("f")
        h = np.maximum(x.astype("d") @ w, 0)
        want = -np.tanh(np.exp(h) / np.exp(h).sum(1, keepdims=True))
        session.submits = []
        for _ in range(3):
            before = session.state.gpu.stats.submits
            np.testing.assert_allclose(session.run(None, {"x": x})[0], want, rtol=1e-4, atol=1e-6)
            session.submits.append(session.state.gpu.stats.submits - before)
        return session

    return open_it


def plan(session: Any) -> Any:
    return session.state.partitions[0].program.plans[-1]


def test_shaders_are_checked(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted: list[str] = []
    made = native.trusted_module
    monkeypatch.setattr(
        native, "trusted_module", lambda device, label, code: trusted.append(label) or made(device, label, code)
    )
    opened({"checked_shaders": "1"}, checked_shaders=0)
    assert not trusted
    opened({}, checked_shaders=0)
    assert trusted


def test_nothing_is_fused(opened: Opened) -> None:
    assert plan(opened({"fusion": "0"})).dispatches == 5
    assert plan(opened({})).dispatches < 5


@pytest.mark.parametrize(("asked", "counts"), [(0, True), (1, True)])
def test_results_are_verified(asked: int, counts: bool, opened: Opened) -> None:
    assert opened({"verify": "2"}, verify=asked).state.config.verify == (asked or 2)
    assert bool(opened({"verify": "2"}).state.partitions[0]._runs_of) is counts
    assert not opened({}).state.partitions[0]._runs_of


def test_numbers_are_the_smaller_ones(opened: Opened) -> None:
    for given, seconds, mib in (
        ({"hang_timeout_ms": 0}, 70.0, 90),
        ({"hang_timeout_ms": 60000, "memory_limit_mb": 80}, 60.0, 80),
    ):
        state = opened({"hang_timeout_ms": "70000", "memory_limit_mb": "90"}, **given).state
        with state.allowance:
            assert (state.gpu.hang_timeout_s, state.gpu.memory_limit_nbytes) == (seconds, mib << 20)


def test_bindings_are_split(opened: Opened) -> None:
    session = opened({"max_binding_nbytes": "16384"})  # w has as much; x and y (70 x 64 x 4 B) take two bindings
    assert session.state.gpu.limits.max_binding_nbytes == 16384
    assert session.state.partitions


@pytest.mark.parametrize(
    ("name", "value"), [("max_workgroup_nbytes", "16"), ("max_invocations", "32"), ("max_buffers_per_stage", "1")]
)
def test_lower_limits_decline(name: str, value: str, opened: Opened) -> None:
    session = opened({name: value})
    nodes = [node for report in session.explain().reports for node in report.nodes]
    assert any(node.code == "LIMIT" for node in nodes)
    assert not any(node.code == "LIMIT" for report in opened({}).explain().reports for node in report.nodes)


def test_grids_are_folded(opened: Opened) -> None:
    assert max(max(step.groups) for step in plan(opened({})).steps) > 5
    assert max(max(step.groups) for step in plan(opened({"max_groups_per_dimension": "5"})).steps) <= 5


def test_more_workgroups_than_two_dimensions_hold_go_to_the_cpu(opened: Opened) -> None:
    # before or after it is partitioned again by what its run showed
    explained = opened({"max_groups_per_dimension": "2"}).explain()
    reasons = [node.reason for report in explained.reports for node in report.nodes]
    assert any("workgroups; this adapter allows 2" in text for text in (*explained.events, *reasons))


@pytest.mark.parametrize(("count", "grid"), [(0, (0, 1, 1)), (9, (3, 3, 1)), (4, (2, 2, 1)), (3, (3, 1, 1))])
def test_a_grid_in_two_dimensions(count: int, grid: tuple[int, int, int]) -> None:
    assert folded(count, 3) == grid
    with pytest.raises(UnsupportedNodeError, match="10 workgroups; this adapter allows 3 x 3"):
        folded(10, 3)


def test_each_dispatch_is_submitted_alone(opened: Opened) -> None:
    session = opened({"submit_each": "1"})
    dispatches = plan(session).dispatches
    first, *later = session.submits
    assert later == [dispatches + 1] * 2  # and the readback
    assert first == dispatches + 1 + 2  # memory of values that a program may read is zeroed where it is new
    assert opened({}).submits == [2, 1, 1]


def test_it_is_told(opened: Opened) -> None:
    events = opened({"fusion": "0", "max_invocations": "128"}).explain().events
    assert "notice in adapter: workaround fusion=0: known fault: it hangs (https://example.org/2)" in events
    assert any("workaround max_invocations=128" in event for event in events)


def test_never_less_safe() -> None:
    for name in NAMES:
        value = 1 if name not in ("fusion",) else 0
        found = [
            Workaround(name, value, "why"),
            Workaround(name, max(value, 5) if name not in workarounds.VALUES else value, "why"),
        ]
        safe = Config(checked_shaders="1", fusion=False, verify=1, hang_timeout_ms=1, memory_limit_mb=1)
        assert with_workarounds(safe, found) == safe
        assert all(getattr(lowered(Limits(), found), cap) <= getattr(Limits(), cap) for cap in workarounds.CAPS)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"fuson": "0"}, "line 3: got workaround 'fuson'; expected one of checked_shaders"),
        ({"fusion": "1"}, "line 3: got fusion '1'; expected '0'"),
        ({"checked_shaders": True}, "line 3: got checked_shaders True; expected '1'"),
        ({"verify": "0"}, "line 3: got verify '0'; expected a whole number of at least 1"),
        ({"max_binding_nbytes": "1e6"}, "line 3: got max_binding_nbytes '1e6'; expected a whole number"),
        ({"submit_each": "yes"}, "line 3: got submit_each 'yes'; expected '1'"),
        ([], "line 3: got workarounds \\[\\]; expected a dict"),
    ],
)
def test_errors_name_the_line(found: Any, message: str) -> None:
    text = (
        '[\n{"what": "x", "bug": "https://example.org", "probe": "softmax", "disables": '
        '["softmax.wgsl"],\n"workarounds": ' + json.dumps(found) + "}]"
    )
    with pytest.raises(ConfigError, match=message):
        parse(text, "f")


def test_doctor_shows_them(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(json.dumps([{**ENTRY, "workarounds": {"submit_each": "1"}, "update": "Mesa 99"}]))
    done = CliRunner().invoke(
        app, ["doctor", "--quick", "--json", "-o", f"quirks={tmp_path / 'q.json'}", "-o", f"cache_dir={tmp_path}"]
    )
    told = json.loads(done.stdout)
    assert {"what": "submit_each", "value": 1, "why": "known fault: it hangs (https://example.org/2)"} in told[
        "workarounds"
    ]
    assert told["known_faults"][-1] == {
        "what": "it hangs",
        "bug": ENTRY["bug"],
        "disables": [],
        "workarounds": {"submit_each": 1},
        "probe": "softmax",
        "update": "Mesa 99",
    }


def test_a_fault_is_told_with_what_was_done() -> None:
    (quirk,) = parse(
        json.dumps(
            [
                {
                    **ENTRY,
                    "disables": ["subgroup"],
                    "workarounds": {"submit_each": "1", "verify": "2"},
                    "update": "Mesa 99",
                }
            ]
        ),
        "f",
    )
    assert str(quirk) == (
        "known fault: it hangs (https://example.org/2); not used: subgroup; workaround: submit_each, verify=2; "
        "probe 'softmax' looks for it; update to Mesa 99"
    )


def test_a_driver_that_loses_signs(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unary minus is lost where a text has one; with the workaround none has."""
    compiled = native.trusted_module, Device.create_shader_module
    monkeypatch.setattr(
        native,
        "trusted_module",
        lambda device, label, code: compiled[0](device, label, re.sub(r"-(?=[a-z])", "", code)),
    )
    monkeypatch.setattr(
        Device,
        "create_shader_module",
        lambda self, label, code: compiled[1](self, label, re.sub(r"-(?=[a-z])", "", code)),
    )
    assert "sign_bits" in opened({"sign_bits": "1"}).state.gpu.rewritings
    with pytest.raises(AssertionError, match="Not equal"):
        opened({})


@pytest.mark.parametrize("alone", [True, False])
def test_pipelines_are_made_one_at_a_time(alone: bool, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that make a pipeline meet there, unless only one may be there."""
    gpu = opened({"compile_alone": "1"} if alone else {}).state.gpu
    meeting = threading.Barrier(2, timeout=1.0)

    def meet(*anything: object) -> Exception | threading.Barrier:
        try:
            meeting.wait()
        except threading.BrokenBarrierError as error:
            return error
        return meeting

    monkeypatch.setattr(pipelines, "_compile", meet)
    with ThreadPoolExecutor(2) as pool:
        met = list(
            pool.map(
                lambda text: pipelines.compiled(gpu, "a kernel", "softmax.wgsl", text, ((True,), False, 0), True),
                ("one", "two"),
            )
        )
    assert [pipeline is meeting for pipeline in met] == [not alone] * 2
