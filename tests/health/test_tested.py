"""The table of adapters that this package was tested on: who is in it, how it grows, what it tells of a machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.health import tested

INFO = AdapterInfo(
    0, "Voodoo 3", "discrete", "Vulkan", "1.2 (Glide)", 1, 2, "0000:65:00.0", "1a2b3c4d-0000-0000-0000-000000000000"
)


def test_the_shipped_table() -> None:
    entries = tested.shipped()
    assert {each["what"] for each in entries} >= {"conformance", "models"}
    for each in entries:
        assert set(each) == set(tested.entry(INFO, "doctor", {}))
        assert each["what"] in tested.WHAT
        assert not [
            value for value in each["results"].values() if isinstance(value, str) and not value.startswith("pass ")
        ]
        assert not each["results"].get("wrong")


def test_a_table_grows_by_adapter_and_driver(tmp_path: Path) -> None:
    path = tmp_path / "adapters.json"
    tested.append(path, tested.entry(INFO, "doctor", {"PASS": 1}))
    tested.append(path, tested.entry(replace(INFO, driver="1.3"), "doctor", {"PASS": 2}))
    tested.append(path, tested.entry(INFO, "doctor", {"PASS": 3}))
    tested.append(path, tested.entry(INFO, "conformance", {"pass": 4}, held_to="minimum"))
    entries = json.loads(path.read_text("utf-8"))
    assert [(each["driver"], each["what"], each["as"], *each["results"].values()) for each in entries] == [
        ("1.3", "doctor", "", 2),
        ("1.2 (Glide)", "doctor", "", 3),
        ("1.2 (Glide)", "conformance", "minimum", 4),
    ]
    assert INFO.uuid not in path.read_text("utf-8")
    assert INFO.pci not in path.read_text("utf-8")


@pytest.mark.parametrize("text", ["{", "[1]", '[{"adapter": "x"}]'])
def test_a_file_that_is_no_such_table_stays(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"other\.json.*expected a table"):
        tested.append(path, tested.entry(INFO, "doctor", {}))
    assert path.read_text("utf-8") == text


def test_who_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tested.entry(INFO, "doctor", {"PASS": 1}) | {"date": "2026-01-02"}
    monkeypatch.setattr(tested, "shipped", lambda: [known, known | {"adapter": "Banshee", "as": "minimum"}])
    assert tested.about(INFO).startswith("This package was tested on this adapter on 2026-01-02, with onnxruntime ")
    assert "on 2026-01-02 with the driver 1.2 (Glide), with" in tested.about(replace(INFO, driver="2.0"))
    # held to a class is not the adapter itself
    assert "none of the 2 that" in tested.about(replace(INFO, name="Banshee"))
