"""Texts of shaders around faults of drivers: only what fails is replaced, everywhere, and what a text computes
stays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.replay import replayed
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, run_wgsl
from ort_gpu_ep.device.pipelines import worked_around
from ort_gpu_ep.errors import ShaderError
from ort_gpu_ep.health.workarounds import REWRITINGS as NAMES
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.shaders import rewriting
from ort_gpu_ep.shaders.expressions import Expression, Rules, element_of, rewritten_expressions, width_of
from ort_gpu_ep.shaders.rewriting import REWRITINGS, rewritten
from ort_gpu_ep.webgpu.objects import Device

GROUPS, LANES = 4, 64
COUNT = GROUPS * LANES
HEAD = """@group(0) @binding(0) var<storage, read> xs: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
struct Sizes { COUNT: u32, GROUPS: u32 }
var<workgroup> held: array<atomic<u32>, 64>;
fn x_at(i: u32) -> f32 { return f32(i32(xs[i] & 0xffffu) - 32768) / 256.0; }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = id.x;
"""
SUBGROUPS = """@group(0) @binding(0) var<storage, read> xs: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_subgroups) count: u32, @builtin(subgroup_id) which: u32) {
    out[id.x] = count * 1024u + which + 0u * xs[id.x];
}
"""
FAULTS: dict[str, tuple[str, tuple[str, str]]] = {
    "opaque_divisors": (
        "out[i] = ((xs[i] * xs[i]) >> 16u) % 3u + (xs[i] * 2654435761u) / 7u;",
        (r"([%/]) (\d+)u", r"\1 1\2u"),
    ),
    "compared_below_one": (
        "let e = xs[i] & 0xfu; out[i] = select(select(0u, 1u, e == 0u), 2u, e == 8u) + select(4u, 8u, 0u != (xs[i] "
        ">> 4u & 3u));",
        (r"\be == 0u", "e == 3u"),
    ),
    "exchanged_stores": (
        "atomicStore(&held[lane], xs[i]); workgroupBarrier(); atomicStore(&held[lane], lane); workgroupBarrier(); "
        "out[i] = atomicLoad(&held[63u - lane]);",
        ("atomicStore", "atomicAdd"),
    ),
    "sign_bits": (
        "out[i] = bitcast<u32>(select(-abs(x_at(i)), abs(-x_at(i)) - 1.0, -x_at(i) < x_at(i + 1u)));",
        (r"-(?=[a-z])", ""),
    ),
    "scalar_bounds": (
        "let v = vec4<f32>(x_at(i), 1.0, x_at(i + 1u), 2.0); let w = clamp(min(v, vec4<f32>(9.0)), vec4<f32>(-9.0), "
        "vec4<f32>(5.0)); "
        "out[i] = bitcast<u32>(w.x * w.y + w.z * w.w);",
        (r"min\(v, vec4<f32>", "max(v, vec4<f32>"),
    ),
    "plain_dots": (
        "out[i] = bitcast<u32>(dot4I8Packed(xs[i], xs[i + 1u])) + dot4U8Packed(xs[i], 0x80ff0102u);",
        (r"\bdot4([IU])8Packed\(([^,]+), [^)]+\)", r"dot4\g<1>8Packed(\2, 1u)"),
    ),
    "counted_subgroups": (
        "",
        (
            r"@builtin\(num_subgroups\) (\w+): u32(.*?)\) \{",
            r"@builtin(num_subgroups) told: u32\2) { let \1 = told / 2u;",
        ),
    ),
}
"""By workaround: statements that a driver gets wrong, and how, as (pattern, replacement) in what it is given."""


def text_of(name: str) -> str:
    return f"{HEAD}    {FAULTS[name][0]}\n}}\n" if FAULTS[name][0] else SUBGROUPS


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """The device of the tests, with its rewritings set back at the end."""
    opened = Gpu.open(Config())
    before = opened.rewritings
    yield opened
    opened.rewritings = before


@contextmanager
def driver_with(fault: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A driver that compiles something else where it is given what the pattern finds."""
    compiled = Device.create_shader_module
    with monkeypatch.context() as patch:
        if fault is not None:
            patch.setattr(
                Device, "create_shader_module", lambda self, label, code: compiled(self, label, re.sub(*fault, code))
            )
        yield


def computed(gpu: Gpu, name: str, fault: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    xs = np.random.default_rng(5).integers(0, 2**32, COUNT + 1, dtype=np.uint32)
    with driver_with(fault, monkeypatch):
        return run_wgsl(gpu, name, text_of(name), [xs], np.full(COUNT, 7, np.uint32), GROUPS)


def test_each_workaround_has_its_rewriting() -> None:
    assert set(NAMES) == set(REWRITINGS) == set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_it_cures_the_fault(name: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.rewritings = frozenset({"counted_subgroups"}) if name == "counted_subgroups" else frozenset()
    want = computed(gpu, name, None, monkeypatch)
    assert len(np.unique(want)) > 5
    gpu.rewritings = frozenset()
    assert not np.array_equal(computed(gpu, name, FAULTS[name][1], monkeypatch), want)
    gpu.rewritings = frozenset({name})
    assert np.array_equal(computed(gpu, name, FAULTS[name][1], monkeypatch), want)
    gpu.rewritings = frozenset(NAMES)
    assert np.array_equal(computed(gpu, name, FAULTS[name][1], monkeypatch), want)


def test_values_against_numpy(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    xs = np.random.default_rng(5).integers(0, 2**32, COUNT + 1, dtype=np.uint32)
    gpu.rewritings = frozenset(NAMES)
    x = xs[:-1]
    assert np.array_equal(
        computed(gpu, "opaque_divisors", None, monkeypatch), (x * x >> 16) % 3 + x * np.uint32(2654435761) // 7
    )
    signed, unsigned = (
        xs.view(np.int8).reshape(-1, 4).astype(np.int32),
        x.view(np.uint8).reshape(-1, 4).astype(np.uint32),
    )
    dots = (signed[:-1] * signed[1:]).sum(1).astype(np.uint32) + unsigned @ np.array([2, 1, 255, 128], np.uint32)
    assert np.array_equal(computed(gpu, "plain_dots", None, monkeypatch), dots)
    at = ((xs & 0xFFFF).astype(np.int32) - 32768).astype("f") / np.float32(256)
    a, b = at[:-1], at[1:]
    assert np.array_equal(
        computed(gpu, "sign_bits", None, monkeypatch).view("f"), np.where(-a < b, abs(a) - 1, -abs(a)).astype("f")
    )


def test_signs_keep_zeros_and_nans(gpu: Gpu) -> None:
    gpu.rewritings = frozenset({"sign_bits"})
    text = (
        HEAD + "    let x = bitcast<f32>(xs[i]);\n    out[2u * i] = bitcast<u32>(-x);\n    out[2u * i + 1u] = "
        "bitcast<u32>(abs(x));\n}\n"
    )
    xs = np.resize(np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 1], np.uint32), LANES)
    got = run_wgsl(gpu, "signs", text, [xs], np.zeros(2 * LANES, np.uint32), 1).reshape(-1, 2)
    assert np.array_equal(got, np.stack([xs ^ 0x80000000, xs & 0x7FFFFFFF], 1))


def test_nothing_changes_without_a_workaround() -> None:
    text = text_of("sign_bits")
    assert rewritten(text, ()) is text
    gpu: Any = SimpleNamespace(rewritings=frozenset())
    assert worked_around(gpu, "a kernel", text) is text


PLAIN = (
    HEAD
    + """    // a / b, -x and e == 0u in a comment
    const HALF: u32 = 8u / 2u;
    var list: array<u32, 8u / 4u>;
    list[0] = xs[i] >> 1u;
    switch (list[0] & 3u) { case 0u, 1u: { list[1] = HALF; } default: { list[1] = 1u; } }
    let signed = i32(i) / 2 - (-3);
    let float = x_at(i) / 2.0 - -1.0;
    out[i] = list[0] + list[1] + u32(signed) + u32(min(float, 1.0)) + u32(abs(signed)) + select(0u, 1u, signed == 0);
}
"""
)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_stays(name: str) -> None:
    assert rewritten(PLAIN, {name}) == PLAIN


def test_a_text_without_a_hidden_number_is_said() -> None:
    gpu: Any = SimpleNamespace(rewritings=frozenset({"opaque_divisors"}), info=SimpleNamespace(name="a GPU"))
    with pytest.raises(
        ShaderError, match=r"a kernel: its text can't be rewritten.*a GPU.*opaque_divisors.*gives the opaque zero"
    ):
        worked_around(gpu, "a kernel", "@compute @workgroup_size(1) fn main() { let a = 7u; let b = a / 3u; }")


class Seen(Rules):
    """Counts what rewritings look for, and what has no type."""

    def __init__(self) -> None:
        self.found, self.unknown = Counter[str](), list[str]()

    def _note(self, what: str, *operands: Expression) -> None:
        kind = self.concrete(*operands)
        self.found[f"{what} {element_of(kind)}"] += not all(o.literal for o in operands)
        self.found[f"{what} vector {element_of(kind)}"] += width_of(kind) > 1
        if not kind:
            self.unknown.append(f"{what} {[o.text for o in operands]}")

    def unary(self, operator: str, operand: Expression) -> None:
        if operator == "-":
            self._note(operator, operand)

    def binary(self, left: Expression, operator: str, right: Expression) -> None:
        if operator in ("/", "%"):
            self._note(operator, left, right)
            self.found["hidden"] += "opaque_zero" in right.text
        if operator in ("==", "!="):
            self._note(operator, left, right)
            self.found["zero"] += right.text == "0u" or left.text == "0u"

    def call(self, name: str, arguments: list[Expression]) -> None:
        if name in ("abs", "min", "max", "clamp"):
            self._note(name, *arguments)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Of records of kernels with all that is replaced."""
    limits = Limits(
        features=frozenset({"shader-f16", "subgroup"}),
        max_invocations=1024,
        max_workgroup_nbytes=49152,
        max_buffers_per_stage=32,
    )
    some = "^record/(unary|binary|matvec_rows|softmax_rows|integer_product|scatter_owner|attention|resize|conv|cumulative|gather)[^/]*/"
    return list(replayed(some, 1, {"a GPU": limits})[1].values())


def seen(text: str) -> Seen:
    rules = Seen()
    assert rewritten_expressions(text, rules) == text
    return rules


def test_types_of_real_texts_are_known(texts: list[str]) -> None:
    total = Counter[str]()
    for text in texts:
        rules = seen(text)
        assert not rules.unknown, text.splitlines()[0]
        total += rules.found
    assert all(total[what] > 3 for what in ("/ u32", "% u32", "zero", "- f32", "abs f32")), total


def test_nothing_that_fails_is_left_in_real_texts(texts: list[str]) -> None:
    changed = 0
    for text in texts:
        got = rewriting.opaque_divisors(text)
        found = seen(got).found
        assert found["hidden"] >= found["/ u32"] + found["% u32"] - found["/ vector u32"] - found["% vector u32"]
        assert not seen(rewriting.compared_below_one(text)).found["zero"]
        signs = seen(rewriting.sign_bits(text)).found
        assert not signs["- f32"] + signs["abs f32"]
        bounds = seen(rewriting.scalar_bounds(text)).found
        assert not sum(bounds[f"{name} vector f32"] for name in ("min", "max", "clamp"))
        assert "atomicStore(" not in rewriting.exchanged_stores(text)
        assert not re.search(r"\bdot4[IU]8Packed\(", rewriting.plain_dots(text))
        assert "num_subgroups" not in rewriting.counted_subgroups(text)
        changed += rewritten(text, NAMES) != text
    assert changed > len(texts) // 2
