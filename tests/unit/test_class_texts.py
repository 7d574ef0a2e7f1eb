"""No text that is composed for a class of GPUs needs more than the class has: counted in the text itself, not by what
claims a node.

wgpu-native does not look at workgroup memory, and drivers that do refuse the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from benchmarks import replay
from ort_gpu_ep.device.classes import classes
from ort_gpu_ep.kernels.target import LAST_ARRIVING, SUBNORMAL_HALVES, Limits

SELECT = (r"record/[^/]+/\d+$", "model/(encoder|decoder|har_lstm|mobilenet_v2|unet)$", "compressed/lenet5/")
SCALARS = {"f32": 4, "u32": 4, "i32": 4, "f16": 2, "i64": 8, "u64": 8, "f64": 8, "bool": 4}


def limits_of(name: str) -> Limits:
    """After all probes have shown right results."""
    limits = classes()[name].as_limits()
    return replace(limits, features=limits.features | {LAST_ARRIVING, SUBNORMAL_HALVES}, max_loop_iterations=1 << 40)


@cache
def composed(name: str) -> tuple[str, ...]:
    return tuple(text for select in SELECT for text in replay.replayed(select, 1, {"": limits_of(name)})[1].values())


def number(text: str, names: Mapping[str, Any]) -> int:
    """Of an expression of unsigned numbers."""
    plain = re.sub(r"\b(\d+)u\b", r"\1", text).replace("/", "//")
    return int(
        eval(
            re.sub(r"\bselect\(([^,]*),([^,]*),([^)]*)\)", r"((\2) if (\3) else (\1))", plain),
            {"min": min, "max": max},
            dict(names),
        )
    )


def size_of(kind: str, aliases: Mapping[str, str], names: Mapping[str, Any]) -> int:
    """Bytes of a WGSL type."""
    kind = aliases.get(kind, kind).strip()
    if kind in SCALARS:
        return SCALARS[kind]
    if vector := re.fullmatch(r"vec([234])<(\w+)>", kind):
        return (4 if vector[1] == "3" else int(vector[1])) * size_of(vector[2], aliases, names)
    if atomic := re.fullmatch(r"atomic<(\w+)>", kind):
        return size_of(atomic[1], aliases, names)
    array = re.fullmatch(r"array<(.*), ([^,<>]+)>", kind)
    assert array is not None, kind
    return size_of(array[1], aliases, names) * number(array[2], names)


def needs(text: str) -> dict[str, Any]:
    aliases = dict(re.findall(r"^alias (\w+) = (.+);", text, re.MULTILINE))
    names: dict[str, Any] = {"true": True, "false": False}
    for name, value in re.findall(r"^const (\w+)(?:: \w+)? = ([^;]+);", text, re.MULTILINE) * 2:
        try:
            names[name] = number(value, names)
        except (SyntaxError, NameError, TypeError, ValueError):
            continue  # of another type, or of one that comes later; where a size needs it, that says so
    size = re.search(r"@workgroup_size\(([^)]*)\)", text)
    assert size is not None
    return {
        "buffers": len(re.findall(r"@binding\(\d+\) var<storage", text)),
        "invocations": number(size[1].replace(",", "*"), names),
        "workgroup": sum(
            size_of(kind, aliases, names) for kind in re.findall(r"var<workgroup> \w+\s*:\s*([^;]+);", text)
        ),
        "features": {
            feature
            for feature, pattern in (
                ("shader-f16", r"^enable f16|\bf16\("),
                ("shader-int64", r"\b[iu]64\b"),
                ("subgroup", r"\bsubgroup[A-Z]\w*\("),
                ("shader-f64", r"\bf64\b"),
            )
            if re.search(pattern, re.sub(r"//.*", "", text), re.MULTILINE)
        },
    }


def faults(texts: Iterator[str] | tuple[str, ...], limits: Limits) -> list[str]:
    found = []
    for text in texts:
        needed, first = needs(text), text.splitlines()[0]
        for what, most in (
            ("buffers", limits.max_buffers_per_stage),
            ("invocations", limits.max_invocations),
            ("workgroup", limits.max_workgroup_nbytes),
        ):
            found += [f"{first}: {needed[what]} {what}, the class has {most}"] if needed[what] > most else []
        found += [f"{first}: {feature}" for feature in needed["features"] - limits.features]
    return found


@pytest.mark.parametrize("name", list(classes()))
def test_texts_stay_within_the_class(name: str) -> None:
    texts = composed(name)
    assert len(texts) > 150
    assert faults(texts, limits_of(name)) == []
    assert any(needs(text)["workgroup"] > 8192 for text in texts)  # else nothing is counted


def test_what_another_class_gets_is_too_much_for_a_small_one() -> None:
    limits = limits_of("raspberry-pi-4")
    # of 8, the most here
    found = faults(composed("amd-rdna"), replace(limits, max_buffers_per_stage=limits.max_buffers_per_stage - 1))
    for what in (" buffers", " invocations", " workgroup", "shader-int64", "subgroup"):
        assert any(what in each for each in found), what
