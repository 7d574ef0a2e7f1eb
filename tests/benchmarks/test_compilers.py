"""benchmarks/compilers.py with the drivers that are here: what becomes of a text is a row, also where the compiler dies
of it.

Lavapipe is always here; scripts/compilers.sh sets up those of GPUs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import compilers, layer

SELECT = "record/softmax_rows/0$"
DYING = """
import os, time
from benchmarks import compilers_process as process
whole = process.make_pipeline
def make_pipeline(device, text, trusted):
    if "dies of it" in text: os.abort()
    if "takes too long" in text: time.sleep(300)
    whole(device, text, trusted)
process.make_pipeline = make_pipeline
process.main()
"""
"""A driver whose compiler dies of one text and never ends with another."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return layer.build(tmp_path_factory.mktemp("layer"))


@pytest.fixture(scope="module")
def text(environment: dict[str, str]) -> str:
    (here,) = compilers.places(["here"])
    told = compilers.adapter_of(here, environment)
    ((_, found),) = compilers.composed(frozenset({"record/softmax_rows/0"}), SELECT, compilers.limits_of(told)).values()
    return found


def test_every_driver_that_is_set_up_compiles(environment: dict[str, str], tmp_path: Path) -> None:
    first = {place.name.split("/")[0]: place for place in compilers.places()}
    here = environment
    for name, place in first.items():
        environment = layer.build(tmp_path / place.target, place.target) if place.target else here
        told = compilers.adapter_of(place, environment)
        texts = compilers.composed(frozenset({"record/softmax_rows/0"}), SELECT, compilers.limits_of(told))
        works = [(digest, case, found, trusted) for digest, (case, found) in texts.items() for trusted in (True, False)]
        rows = compilers.compiled(place, environment, works, 100.0)
        assert [(row.outcome, row.why, row.shader) for row in rows] == [("compiled", "", "softmax_rows.wgsl")] * 2
        assert all(row.ms > 0 for row in rows)
        if name not in (compilers.HERE, "v3dv"):  # which tell none
            assert all(row.spills is not None and row.subgroup in (8, 16, 32, 64, 128) for row in rows), rows
        one = compilers.summary(place, told, rows, None)
        assert (one["texts"], one["pipelines"], one["compiled"], one["spilled"]) == (1, 2, 2, 0)


def test_what_a_text_did_is_in_its_row(environment: dict[str, str], text: str) -> None:
    (here,) = compilers.places(["here"])
    place = compilers.Place("dying", "none", (sys.executable, "-c", DYING), here.environment)
    works = [
        (str(k), "case", found, True)
        for k, found in enumerate(
            (text, text + "// dies of it", text, text + "// takes too long", text + "let = 1;", text)
        )
    ]
    rows = compilers.compiled(place, environment, works, 20.0)
    assert [row.digest for row in rows] == [digest for digest, *_ in works]
    assert [row.outcome for row in rows] == ["compiled", "crashed", "compiled", "late", "refused", "compiled"]
    assert "exit code -6" in rows[1].why
    assert "expected" in rows[4].why
    one = compilers.summary(place, {"adapter": "a", "driver": "d"}, rows, 6)
    assert [one[outcome] for outcome in compilers.OUTCOMES] == [3, 1, 1, 1]


def test_a_driver_that_opens_nothing_is_told_of(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    place = compilers.Place(
        "none", "none", environment={"VK_DRIVER_FILES": "/dev/null", "VK_ICD_FILENAMES": "/dev/null"}
    )
    with pytest.raises(compilers.UnopenedError, match="exit code 1"):
        compilers.adapter_of(place, environment)
    monkeypatch.setattr(compilers, "places", lambda wanted: [place])
    app = compilers.typer.Typer()
    app.command()(compilers.main)
    done = CliRunner().invoke(app, ["--select", SELECT])
    assert done.exit_code == 1
    assert "unopened none: exit code 1" in done.output


def test_faults_are_those_that_no_line_expects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = tmp_path / "expected.txt"
    expected.write_text("# a remark\nspilled radv/.* product  # a reason\ncrashed nvk/172 gemm  # another\n")
    monkeypatch.setattr(compilers, "EXPECTED", expected)
    row = compilers.Row("radv/navi31", "0", "hot/x", "product.wgsl", True, "compiled", spills=0)
    spilled = compilers.Row("radv/navi31", "1", "hot/x", "product.wgsl", True, "compiled", spills=3)
    refused = compilers.Row("radv/navi31", "2", "hot/x", "product.wgsl", True, "refused", why="no")
    assert compilers.unexpected([row, spilled], True, ["radv/navi31"]) == []
    assert compilers.unexpected([refused], False, ["radv/navi31"]) == ["refused radv/navi31 product.wgsl | hot/x: no"]
    assert compilers.unexpected([row], True, ["radv/navi31"]) == [
        "expected, but nothing is so: spilled radv/.* product"
    ]
    assert compilers.unexpected([row], True, ["nvk/172"]) == ["expected, but nothing is so: crashed nvk/172 gemm"]


def test_drivers_say_the_same_in_other_words() -> None:
    def told(**statistics: float) -> dict[str, int]:
        return compilers.told_by_driver([{"executables": [{"subgroup": 32, **statistics}]}])

    # Adreno: of four
    assert told(**{"Registers used": 12, "STP Count": 3}) == {"registers": 48, "spills": 3, "subgroup": 32}
    # halves
    assert told(GPRs=103, Spills=0, Threads=1024) == {"registers": 52, "spills": 0, "waves": 32, "subgroup": 32}
    assert told(**{"VGPRs": 96, "Spilled VGPRs": 1, "LDS size": 512}) == {
        "registers": 96,
        "spills": 1,
        "workgroup": 512,
        "subgroup": 32,
    }
    assert compilers.told_by_driver([{"executables": []}]) == {}


def test_the_command_writes_what_it_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "RECORD", tmp_path / "compilers.json")
    file = tmp_path / "all.json"
    app = compilers.typer.Typer()
    app.command()(compilers.main)
    done = CliRunner().invoke(app, ["here", "--select", SELECT, "--trusted", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert [one["place"] for one in found["summaries"]] == ["here"]
    assert found["summaries"][0]["compiled"] == 1
    (row,) = found["rows"]
    assert (row["case"], row["outcome"], row["trusted"]) == ("record/softmax_rows/0", "compiled", True)
    refused = CliRunner().invoke(app, ["radv/navi99"])
    assert refused.exit_code == 2
    assert "radv/navi31" in refused.output
