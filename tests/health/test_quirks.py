"""Quirk files: who they are for, and what is said about a broken one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import AdapterInfo
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.health import open_adapter
from ort_gpu_ep.health.quirks import load, parse, shipped, version_of

INFO = AdapterInfo(0, "Graphics 630", "integrated", "Vulkan", "Mesa 23.1.9 (LLVM 15.0.6)", 0x8086, 0x5912)
ENTRY: dict[str, Any] = {"what": "rows come out wrong", "disables": ["softmax.wgsl"], "bug": "https://example.org/1", "probe": "softmax"}


def one(**more: Any) -> bool:
    (quirk,) = parse(json.dumps([{**ENTRY, **more}]), "f")
    return quirk.fits(INFO)


@pytest.mark.parametrize(("more", "fits"), [
    ({}, True), ({"vendor": "0x8086"}, True), ({"vendor": "0x10de"}, False), ({"device": "5912"}, True), ({"device": "5913"}, False),
    ({"backend": "Metal"}, False), ({"driver": ">=23.1,<23.2"}, True), ({"driver": "<23.1.9"}, False), ({"driver": "<=23.1.9"}, True),
    ({"vendor": "0x8086", "driver": ">24"}, False),
])
def test_who_a_quirk_is_for(more: dict[str, str], fits: bool) -> None:
    assert one(**more) is fits


def test_versions() -> None:
    assert version_of("Mesa 22.3.6 (LLVM 15.0.6)") == (22, 3, 6)
    assert version_of("580.159.04") == (580, 159, 4)
    assert version_of("no number") == ()
    (quirk,) = parse(json.dumps([{**ENTRY, "driver": "<99"}]), "f")
    assert not quirk.fits(AdapterInfo(0, "x", "discrete", "Vulkan", "unknown", 1, 1))


@pytest.mark.parametrize(("text", "message"), [
    ("{}", "line 1: got no list"),
    ('[\n{"what": 1}]', "line 2: got what 1; expected a str"),
    ('[\n{"what": "x",\n"vendr": "1"}]', "line 3: got key 'vendr'; expected one of what, vendor"),
    ("[\n" + json.dumps(ENTRY) + ",\n{,}]", "line 3: "),
    ("[\n\n{}]", "line 3: an entry without what, disables or workarounds, bug, probe"),
    (json.dumps([{**ENTRY, "disables": ["softmx.wgsl"]}], indent=1), "line 5: got|line 4: got 'softmx.wgsl' in disables"),
    (json.dumps([{**ENTRY, "probe": "sofmax"}]), "got probe 'sofmax'"),
    (json.dumps([{**ENTRY, "vendor": "intel"}]), "got vendor 'intel'; expected a hexadecimal"),
    (json.dumps([{**ENTRY, "driver": "535"}]), "got driver '535'; expected comparisons"),
    ("[" + json.dumps(ENTRY), "line 1: got no comma"),
    ("", "line 1: got no list"),
])
def test_errors_name_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(str(tmp_path / "q.json"))
    assert "q.json" in str(caught.value)
    assert "No entry of this file is applied" in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json: can't be read"):
        load("nowhere.json")
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        open_adapter.open_gpu(Config(quirks="nowhere.json", health="off"))


def test_the_shipped_file_is_sound() -> None:
    assert all(q.bug.startswith("https://") for q in shipped())


def test_reasons_name_the_bug() -> None:
    quirks = parse(json.dumps([ENTRY, {**ENTRY, "vendor": "0x1"}]), "f")
    assert open_adapter.reasons(quirks, INFO) == [("softmax.wgsl", "known fault: rows come out wrong (https://example.org/1)")]
