"""Every shader has a probe, every probe is quiet on a healthy adapter, and every planted fault is found."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.health.probe import PROBES, Trial, Unsupported, agree, slower
from ort_gpu_ep.health.quirks import known_targets
from ort_gpu_ep.kernels import lowering
from ort_gpu_ep.kernels.lowering import SIZES
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Limits, Lowering
from ort_gpu_ep.kernels.target import SHOWN_FEATURES
from ort_gpu_ep.ops.contraction import TILES
from ort_gpu_ep.ops.tiles import TILES as LARGER_TILES

ROOT = Path(__file__).parents[2]
SHADERS = {f.name for f in (ROOT / "ort_gpu_ep" / "shaders").glob("*.wgsl")} - {"functions.wgsl"}
HANGS = "long dispatches"
"""Its fault is a dispatch that never ends: test_doctor.py gives it a process."""


TOO_LARGE = {f"product in tiles {tile.name}" for tile in LARGER_TILES if not tile.fits(Gpu.open(Config()).limits)}
"""Those of tiles that need more workgroup memory than lavapipe has."""


ALIKE = {f"product in tiles {tile.name}" for tile in LARGER_TILES if tile.name not in ("16x16", "32x32/4")}
"""One probe with other tiles, of elements or of vectors: one of each kind is given its fault. All are seen to pass."""


NO_UNITS = {"matrix units", "matrix units of attention", "matrix units of bytes"}
"""Lavapipe has none: tests/ops/test_matrix_units.py, test_attention_units.py and test_unit_bytes.py plant these
faults."""


def faults() -> list[tuple[str, str]]:
    """(probe, shader that its fault is in): each shader of a kernel probe in turn."""
    found = []
    for p in PROBES.values():
        shaders = [d for d in p.disables if d in SHADERS] if p.group == "kernels" and isinstance(p.fault, tuple) else []
        found += [(p.name, s) for s in shaders] or [(p.name, "")]
    return [f for f in found if f[0] not in {HANGS} | NO_UNITS | TOO_LARGE | ALIKE]


def trial(name: str, only: str = "", planted: bool = True, rounds: int = 1) -> Trial:
    """As the doctor runs it on a software adapter: in one round a fault is found, too."""
    return Trial(
        Gpu.open(Config()), np.random.default_rng(20_240_229), rounds, PROBES[name].fault if planted else "", only
    )


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The shaders of all nodes that are claimed meanwhile; each node is priced."""
    found: set[str] = set()

    def claim(bound: BoundNode, limits: Limits) -> Lowering | Decline:
        answer = real(bound, limits)
        if isinstance(answer, Lowering) and answer.kernels:
            assert GUESSED.dispatch_s <= GUESSED.node_s(answer, bound) < 1.0
            kernels = (*answer.kernels, *answer.per_run, *(inverse for _, inverse in answer.inverses))
            found.update(inner.shader for k in kernels for inner in (k, *(i for _, i in k.inlined)))
        return answer

    real = lowering.claim
    monkeypatch.setattr(lowering, "claim", claim)
    return found


def test_every_shader_has_a_probe() -> None:
    covered = {d for p in PROBES.values() if p.group == "kernels" for d in p.disables}
    assert SHADERS - covered == set(), (
        "state problems=[problem(...)] in the record beside the row (docs/adding-an-op.md)"
    )
    assert covered == SHADERS | {*SHOWN_FEATURES, "shader-f16"}


def test_every_tile_has_a_probe() -> None:
    assert {f"gemm {t.m}x{t.n}x{t.k}" for t in TILES} <= set(PROBES)
    larger = {f"product in tiles {t.name}": PROBES[f"product in tiles {t.name}"] for t in LARGER_TILES}
    assert set(larger) >= ALIKE
    assert len({(p.check.__code__, p.fault, p.disables) for p in larger.values()}) == 1, "each is given its fault then"
    assert len(set(larger) - ALIKE) == 2


@pytest.mark.parametrize("software", [True, False])
def test_a_software_adapter_gets_a_part_in_which_each_value_is_met(software: bool) -> None:
    """Of a family of probes, all combinations together."""
    asked = trial("softmax", planted=False)
    asked.gpu = SimpleNamespace(info=SimpleNamespace(is_software=software))  # type: ignore[assignment]
    axes = ("abc", (1, 2), (False, True))
    whole = set(product(*axes))
    some = [list(asked.some(*axes, turn=turn)) for turn in range(2)]
    if not software:
        assert [set(part) for part in some] == [whole, whole]
        return
    assert [len(part) for part in some] == [3, 3], "as many as the longest axis has values"
    for part in some:
        assert [set(values) for values in zip(*part, strict=True)] == [set(axis) for axis in axes]
    assert set().union(*(asked.some(*axes, of=4, turn=turn) for turn in range(4))) == whole


def test_probes_disable_what_exists() -> None:
    assert {d for p in PROBES.values() for d in p.disables} <= known_targets()


@pytest.mark.parametrize(
    "name", [p.name for p in PROBES.values() if p.group in ("kernels", "packed elements", "performance")]
)
def test_a_healthy_adapter_passes_and_every_named_shader_runs(name: str, priced: set[str]) -> None:
    """And each of them has a price: a record that asks for a constant or a tensor that its kernel lacks is found
    here."""
    healthy = trial(name, planted=False)
    if name in TOO_LARGE | NO_UNITS:
        with pytest.raises(Unsupported):
            PROBES[name].check(healthy)
        return
    PROBES[name].check(healthy)
    named = {d for d in PROBES[name].disables if d in SHADERS}
    assert named <= healthy.shaders
    assert named <= priced | {SIZES}, "which no row asks for"


@pytest.mark.parametrize(("name", "shader"), faults())
def test_a_planted_fault_is_found(name: str, shader: str) -> None:
    with pytest.raises(DeviceError):
        PROBES[name].check(trial(name, shader))


@pytest.mark.parametrize(
    "fault",
    [
        (r"x \+ y", "x - y"),
        (r"x / y", "y / x"),
        (r"x % y", "x"),
        (r"i32\(x\)", "i32(x + 1.0h)"),
        (r"u32\(abs\(y\)\)", "i32(y)"),
        (r"f32\(x\) \* 0\.3", "f32(x)"),
        (r"held\[\(i \+ k\) % 8u\]", "held[k]"),
    ],
)
def test_what_else_drivers_do_to_float16_is_found(fault: tuple[str, str]) -> None:
    """Each operation of PowerVR's fault, and private variables, which Huawei's loses. Beside the probe's own fault."""
    assert "shader-f16" in Gpu.open(Config()).limits.features
    with pytest.raises(DeviceError):
        PROBES["f16 arithmetic"].check(Trial(Gpu.open(Config()), np.random.default_rng(7), 1, fault))


@pytest.mark.parametrize("seed", [3, 30, 50, 101])
def test_no_sum_lies_in_the_middle_between_two_bytes(seed: int) -> None:
    """With these numbers and an output's scale of 0.5 some did, and a healthy adapter failed."""
    healthy = trial("requantize", planted=False)
    healthy.rng = np.random.default_rng(seed)
    PROBES["requantize"].check(healthy)


def test_agree_names_the_element() -> None:
    with pytest.raises(DeviceError, match=r"y: element \[1, 2\] of \[2, 3\]: got 9.0, expected 5.0; 1 of 6"):
        agree("y", np.array([[0, 1, 2], [3, 4, 9]], np.float32), np.arange(6.0).reshape(2, 3))
    with pytest.raises(DeviceError, match="got nan"):
        agree("y", np.array([np.nan]), np.array([1.0]))
    with pytest.raises(DeviceError, match="got shape"):
        agree("y", np.zeros(2), np.zeros(3))
    assert agree("y", np.array([np.nan, np.inf, 1.0]), np.array([np.nan, np.inf, 1.0])) == 0


def test_slower_names_the_variant() -> None:
    slower({"a": 1.0, "b": 9.0}, 10)
    with pytest.raises(DeviceError, match=r"b takes 11000\.00 ms"):
        slower({"a": 1.0, "b": 11.0}, 10)


def test_every_module_of_probes_is_listed() -> None:
    folder = ROOT / "ort_gpu_ep" / "health" / "probes"
    there = {f.stem for f in folder.glob("*.py")} - {"__init__"}
    listing = ast.walk(ast.parse((folder / "__init__.py").read_text("utf-8")))
    listed = [name.name for node in listing if isinstance(node, ast.ImportFrom) for name in node.names]
    assert {*listed} - {"annotations"} == there


def test_a_drill_leaves_other_programs_alone() -> None:
    """Its fault is in what its own programs are composed of: one that another thread makes meanwhile is right."""
    planted, healthy = trial("elementwise"), trial("elementwise", planted=False)
    x = np.arange(70, dtype="f")
    texts: list[str] = []

    def composed(*given: Any) -> str:
        np.testing.assert_array_equal(healthy.node("Neg", 13, [x])[0], -x)
        texts.append(Trial._composed(planted, *given))
        return texts[-1]

    planted._composed = composed  # type: ignore[method-assign]
    assert not np.array_equal(planted.node("Neg", 13, [x])[0], -x)
    assert texts
