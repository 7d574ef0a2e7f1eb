"""docs/adapters.md and the tables by maker are what scripts/adapters.py writes; users' reports get into them by a
command."""

from __future__ import annotations

import importlib.util
import json
import os
from datetime import datetime
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import compilers
from ort_gpu_ep.cli import share
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.health import tested

ROOT = Path(__file__).resolve().parents[2]
FACTS = {
    "nodes": {"gpu": 9, "cpu": 1},
    "driver": "Windows 31.0 (WDDM)",
    "adapter": "AMD Radeon [RX] 7600",
    "placement": "auto",
    "ort_gpu_ep": "0.1.0",
    "onnxruntime": "1.32.0",
}


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("adapters", ROOT / "scripts" / "adapters.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_documents_say_what_is_recorded(adapters: ModuleType) -> None:
    again = "run `python scripts/adapters.py table`"
    assert adapters.PAGE.read_text("utf-8") == adapters.page(tested.shipped()), again
    for path, what in adapters.of_makers():
        assert path.read_text("utf-8") == adapters.with_makers(path.read_text("utf-8"), what), again
    lines = {maker: told for maker, *told in adapters.by_maker()}
    assert "NVIDIA H200" in lines["NVIDIA"][0]
    # nothing is called tested or reported that is not in the records
    for maker, (ran, _, reported) in lines.items():
        assert (ran == adapters.NOT_KNOWN) == (maker not in {adapters.maker_of(e["adapter"]) for e in tested.shipped()})
        assert (reported == adapters.NOT_KNOWN) == (
            maker not in {adapters.maker_of(e["adapter"]) for e in adapters.reported()}
        )


def test_every_driver_has_a_maker(adapters: ModuleType) -> None:
    gpus = [gpu for driver in compilers.DRIVERS.values() for gpu in driver.families.values()]
    assert {adapters.maker_of(gpu) for gpu in gpus} == {*adapters.MAKERS} - {"Software"}
    assert adapters.maker_of("Voodoo 3") == "Other"


def test_reports_of_users_get_into_the_tables(
    adapters: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{adapters.BEGIN}\nold\n{adapters.END}\nafter\n", "utf-8")
    monkeypatch.setattr(adapters, "REPORTED", tmp_path / "reported.json")
    monkeypatch.setattr(adapters, "PAGE", tmp_path / "adapters.md")
    monkeypatch.setattr(adapters, "README", readme)
    (tmp_path / "support.md").write_text(readme.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(adapters, "SUPPORT", tmp_path / "support.md")
    of_doctor, of_bench = tmp_path / "adapter.json", tmp_path / "issue.txt"
    info = AdapterInfo(0, "Intel(R) Arc(TM) B580", "discrete", "Vulkan", "32.0.101 (WDDM)", 1, 2, "", "")
    tested.append(of_doctor, tested.entry(info, "doctor", {"PASS": 150, "FAIL": 1}))
    shown = share.markdown(
        "a_model.onnx", "ort-gpu-ep bench a_model.onnx", FACTS, ("provider", "ms", "images/s"), [("ours", "1.5", "666")]
    )
    of_bench.write_text(f"On my machine:\n\n{shown}\n", "utf-8")
    noon = datetime(2026, 3, 4, 12).timestamp()
    os.utime(of_bench, (noon, noon))
    monkeypatch.setattr(adapters.sys, "argv", ["adapters.py", "add", str(of_doctor), str(of_bench)])
    adapters.main()
    doctor, bench = json.loads((tmp_path / "reported.json").read_text("utf-8"))
    assert doctor["results"] == {"PASS": 150, "FAIL": 1}
    assert (bench["adapter"], bench["driver"], bench["what"], bench["results"]) == (
        "AMD Radeon [RX] 7600",
        "Windows 31.0 (WDDM)",
        "bench",
        {"a_model.onnx, ours": "ms 1.5, images/s 666"},
    )
    assert bench["date"] == "2026-03-04"
    lines = {maker: told for maker, *_, told in adapters.by_maker()}
    assert lines["AMD"].startswith("AMD Radeon [RX] 7600, Windows 31.0 (WDDM), 20")
    assert lines["Intel"].startswith("Intel(R) Arc(TM) B580, 32.0.101 (WDDM), 20")
    assert lines["Apple"] == adapters.NOT_KNOWN
    for name in ("support.md", "adapters.md"):
        assert "| AMD Radeon [RX] 7600, Windows" in (tmp_path / name).read_text("utf-8")
    assert "reported by users: AMD, Intel;" in readme.read_text("utf-8")
    assert readme.read_text("utf-8").startswith("before\n")
    assert readme.read_text("utf-8").endswith("\nafter\n")
    assert "PASS: 150; FAIL: 1" in (tmp_path / "adapters.md").read_text("utf-8")


@pytest.mark.parametrize("text", ["nothing of the kind", '[{"adapter": "x"}]'])
def test_a_file_without_a_report_is_refused(
    text: str, adapters: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(adapters, "REPORTED", tmp_path / "reported.json")
    (tmp_path / "x.txt").write_text(text, "utf-8")
    monkeypatch.setattr(adapters.sys, "argv", ["adapters.py", "add", str(tmp_path / "x.txt")])
    with pytest.raises(SystemExit, match=r"x\.txt: .*expected"):
        adapters.main()
    assert not (tmp_path / "reported.json").exists()
