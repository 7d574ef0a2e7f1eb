"""Shaders whose workgroup memory begins as what is wrong in any sum or maximum: NaN, and the largest integers and
halves."""

from __future__ import annotations

import re

from ort_gpu_ep.health.probe import Trial
from ort_gpu_ep.kernels.registry import Bindings, Kernel, Limits

DECLARED = re.compile(r"^var<workgroup> (\w+): ([^;]+);", re.MULTILINE)
ARRAY = re.compile(r"array<(.+?), ([^<>]+)>$")
ALIAS = re.compile(r"^alias (\w+) = ([^;]+);", re.MULTILINE)
MAIN = re.compile(r"fn main\([^{]*\) \{")
LANE = re.compile(r"@builtin\(local_invocation_index\) (\w+): u32")
WRONG = {
    "f32": "bitcast<f32>(0x7fc00001u + unknown)",
    "u32": "(0xfffffff0u + unknown)",
    "i32": "i32(0x7ffffff0u + unknown)",
    "f16": "f16(6e4 + f32(unknown))",
}
"""unknown: a zero that no compiler knows; they refuse a constant that is NaN."""


def wrong(kind: str, place: str) -> str:
    """A statement that overwrites a place of this type."""
    if kind.startswith("atomic<"):
        return f"atomicStore(&{place}, {WRONG[kind[7:-1]]});"
    scalar = kind[5:-1] if kind.startswith("vec") else kind
    return f"{place} = {kind}({WRONG[scalar]});"


def spoiled(text: str) -> str:
    """A shader's text with all of its workgroup memory overwritten before anything else."""
    declared, main, lane = DECLARED.findall(text), MAIN.search(text), LANE.search(text)
    if not declared:
        return text
    assert main is not None
    aliases, head = dict(ALIAS.findall(text)), main[0]
    if lane is None:
        head = head.replace("fn main(", "fn main(@builtin(local_invocation_index) first_lane: u32, ")
    lines = [f"let own_lane = {lane[1] if lane else 'first_lane'};", "let unknown = own_lane >> 31u;"]
    for name, declared_kind in declared:
        array = ARRAY.match(aliases.get(declared_kind, declared_kind))
        kind, count = array.groups() if array is not None else (declared_kind, "1u")
        while kind in aliases:
            kind = aliases[kind]
        store = wrong(kind, f"{name}[at]" if array is not None else name)
        lines.append(f"for (var at = own_lane; at < {count}; at += WORKGROUP_LANES) {{ {store} }}")
    size = re.search(r"@workgroup_size\((\w+)\)", text)
    assert size is not None
    body = " ".join([head, *lines, "workgroupBarrier();"]).replace("WORKGROUP_LANES", f"u32({size[1]})")
    return text.replace(main[0], body)


class Spoiled(Trial):
    """Every kernel begins with spoiled memory. had: the shader files that have any."""

    had: set[str]

    def _composed(self, kernel: Kernel, bindings: Bindings, limits: Limits) -> str:
        text = super()._composed(kernel, bindings, limits)
        self.had |= {kernel.shader} if DECLARED.search(text) else set()
        return spoiled(text)
