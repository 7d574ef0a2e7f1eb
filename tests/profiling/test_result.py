"""A profile as text, as data and as a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ort_gpu_ep.profiling.result import PHASES, WIDTH, Roofs, RunProfile, TimedDispatch, TimedNode
from ort_gpu_ep.profiling.trace import trace_of, write_trace

LONG = "/model/encoder/layers.11/attention/self/a_name_that_exporters_make/MatMul"


def dispatch(us: float, flops: int, nbytes: int, family: str = "product", begin_us: float = 0.0) -> TimedDispatch:
    return TimedDispatch(f"{LONG}/gemm", "gemm", family, "1x128x56x56", (16, 1, 1), 0, begin_us, us, flops, nbytes)


MADE = RunProfile(
    "net.onnx",
    "An Adapter",
    "Vulkan, 1.2",
    21,
    1500.0,
    dict.fromkeys(PHASES, 100.0) | {"wait": 900.0},
    420.0,
    (dispatch(100.0, 2_000_000_000, 4_000_000), dispatch(300.0, 0, 600_000_000, "movement", 110.0)),
    Roofs(40_000.0, 4_000.0),
    ("cores 1980 of 1980 MHz (NVML)", "cores 1965 of 1980 MHz (NVML)"),
    checked=True,
)


def test_rates_and_roofs() -> None:
    product, movement = MADE.dispatches
    assert product.gflops == pytest.approx(20_000.0)
    assert MADE.roofs.share(product) == (pytest.approx(0.5), "flops")
    assert MADE.roofs.share(movement) == (pytest.approx(0.5), "bytes")
    assert Roofs(0.0, 0.0).share(product) == (0.0, "")
    assert dispatch(0.0, 1, 1).gflops == 0.0


def test_totals() -> None:
    assert MADE.kernels_us == 400.0
    assert MADE.gaps_us == 20.0
    assert MADE.overlap_us == 0.0
    crowded = replace(MADE, gpu_us=350.0)
    assert (crowded.gaps_us, crowded.overlap_us) == (0.0, 50.0)
    assert "overlap 50.0 us" in str(crowded)
    assert [(f.name, f.us) for f in MADE.families] == [("movement", 300.0), ("product", 100.0)]


def test_the_text_fits_a_terminal_and_is_sorted_by_time() -> None:
    lines = MADE.lines()
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert text.index(" movement ") < text.index(" product ")
    rows = [line for line in lines if "gemm" in line]
    assert [row.split()[:2] for row in rows] == [["300.0", "75.0%"], ["100.0", "25.0%"]]
    assert "50% f" in rows[1]
    assert rows[0].endswith("MatMul")
    assert "cores 1965 of 1980 MHz (NVML) after" in text


def test_only_the_costliest() -> None:
    assert sum("gemm" in line for line in MADE.lines(top=1)) == 1
    assert "25.0%  the other 1" in MADE.lines(top=1)[-1]


def test_without_timestamps() -> None:
    bare = replace(MADE, dispatches=(), gpu_us=0.0, clocks=("", ""), roofs=Roofs(0.0, 0.0))
    assert "GFLOP/s" not in str(bare)
    assert "clocks" not in str(bare)
    assert bare.as_dict()["gaps_us"] == 0.0
    assert trace_of(bare)["traceEvents"]


def test_json_round_trip() -> None:
    data = json.loads(json.dumps(MADE.as_dict()))
    assert data["dispatches"][0]["roof_share"] == 0.5
    assert sum(f["us"] for f in data["families"]) == data["kernels_us"]


def test_the_trace_has_each_dispatch_inside_the_wait(tmp_path: Path) -> None:
    write_trace(MADE, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    wait = next(e for e in spans if e["name"] == "wait")
    on_gpu = [e for e in spans if e["tid"] != wait["tid"]]
    assert len(on_gpu) == 2
    assert max(e["ts"] + e["dur"] for e in on_gpu) == wait["ts"] + wait["dur"]
    assert all(e["ts"] >= wait["ts"] for e in on_gpu)
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= {"host (means)", "GPU (medians)"}


def test_the_trace_has_nodes_on_a_track_of_their_own() -> None:
    nodes = (
        TimedNode("partition 0", "", "", 5.0, 10.0),
        TimedNode("Memcpy", "MemcpyToHost", "WgpuExecutionProvider", 15.0, 3.0),
        TimedNode("/encoder/Sin", "Sin", "CPUExecutionProvider", 18.0, 40.0),
    )
    made = replace(MADE, nodes=nodes)
    spans = [e for e in trace_of(made)["traceEvents"] if e["ph"] == "X" and e["tid"] == 3]
    assert [(e["name"], e["cat"], e["ts"], e["dur"]) for e in spans] == [
        ("partition 0", "partition", 5.0, 10.0),
        ("Memcpy", "copy", 15.0, 3.0),
        ("/encoder/Sin", "CPU", 18.0, 40.0),
    ]
    assert spans[2]["args"] == {"op": "Sin", "provider": "CPUExecutionProvider"}
    assert "nodes on the CPU, by onnxruntime's profiler: 1, 40.0 us" in made.lines(top=1)
    assert max(map(len, made.lines())) <= WIDTH
