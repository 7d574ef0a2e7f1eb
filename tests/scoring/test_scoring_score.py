"""Whole runs, with worker processes: every row once, in order and right, whatever ends in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep import AdapterError, ModelError, ScoringError
from ort_gpu_ep.scoring import parts, score, worker
from ort_gpu_ep.scoring.drive import Slot
from ort_gpu_ep.scoring.host import Machine
from ort_gpu_ep.scoring.model import Model
from ort_gpu_ep.scoring.process import Process
from ort_gpu_ep.scoring.report import Progress
from ort_gpu_ep.scoring.transport import Worker, WorkerEndError
from tests.patience import PATIENCE_S, until
from tests.scoring.conftest import ROWS, Data, check_rows, lists, write_mlp, write_model

ROOT = Path(__file__).resolve().parents[2]


def segments(pid: int) -> set[str]:
    """What a process has in shared memory, and its workers."""
    return {p.name for p in Path("/dev/shm").glob(f"ortgpuep-{pid}-*")}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    yield
    assert segments(os.getpid()) == set()


def test_two_workers_on_the_adapter_share_the_rows(data: Data, tmp_path: Path) -> None:
    seen = list[Progress]()
    report = score(
        data.model,
        data.file,
        tmp_path / "out.parquet",
        adapters="0,0",
        batch=64,
        key="id",
        shard_rows=700,
        progress=seen.append,
    )
    check_rows(tmp_path / "out.parquet", data)
    assert (report.rows, report.scored, report.refused, report.before) == (ROWS, ROWS, 0, 0)
    assert sum(a["rows"] for a in report.adapters) == ROWS
    assert all(a["replaced"] == [] and a["batch"] == 64 for a in report.adapters)
    assert seen
    assert seen[-1].rows == ROWS
    json.dumps(report.as_dict())


def test_runs_in_several_threads(data: Data, tmp_path: Path) -> None:
    """Each is whole; two at one output are refused but for one."""

    def run(name: str) -> Any:
        try:
            return score(data.model, data.file, tmp_path / name, adapters="cpu", batch=64, key="id").scored
        except ScoringError as error:
            return str(error)

    with ThreadPoolExecutor(4) as threads:
        first, second, *same = threads.map(run, ["a.parquet", "b.parquet", "c.parquet", "c.parquet"])
    assert (first, second) == (ROWS, ROWS)
    assert sorted(map(type, same), key=str) == [int, str]
    for name in "abc":
        check_rows(tmp_path / f"{name}.parquet", data)


def after(monkeypatch: pytest.MonkeyPatch, answers: int, act: Any) -> None:
    """act(slot), once, when a slot has had so many answers."""
    done, real = list[int](), Slot._answered

    def answered(self: Slot, board: Any, answer: Any) -> None:
        real(self, board, answer)
        if self.counts.batches == answers and not done:
            done.append(1)
            act(self)

    monkeypatch.setattr(Slot, "_answered", answered)


def test_a_worker_that_is_killed_is_replaced(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after(monkeypatch, 20, lambda slot: os.kill(slot.pid, signal.SIGKILL))
    report = score(data.model, data.file, tmp_path / "out", adapters="cpu,cpu", batch=32, key="id", shard_rows=500)
    check_rows(tmp_path / "out", data)
    ends = [why for a in report.adapters for why in a["replaced"]]
    assert ends == ["the worker process ended (signal SIGKILL)"]


def test_a_worker_that_hangs_is_replaced(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(slot: Slot) -> None:
        assert slot._process is not None
        slot._process._timeout_s = 0.5
        os.kill(slot.pid, signal.SIGSTOP)

    after(monkeypatch, 20, stop)
    report = score(data.model, data.file, tmp_path / "out", adapters="cpu", batch=32, key="id")
    check_rows(tmp_path / "out", data)
    assert report.adapters[0]["replaced"] == ["the worker process did not answer within 0.5 s and was ended"]


def test_a_device_that_is_lost_is_replaced(data: Data, tmp_path: Path) -> None:
    report = score(
        data.model, data.file, tmp_path / "out", adapters="0", batch=1000, key="id", options={"faults": "lost@8"}
    )
    check_rows(tmp_path / "out", data)
    assert report.adapters[0]["replaced"]
    assert all("DeviceLostError" in why for why in report.adapters[0]["replaced"])


SCRIPT = """
import sys, time
from ort_gpu_ep.scoring import parts, score, worker
real = parts.commit
done = []
def held_up(*given):
    real(*given)
    done.append(given)
    time.sleep(600 * (len(done) == 3))
parts.commit = held_up
if __name__ == "__main__":
    score(sys.argv[1], sys.argv[2], sys.argv[3], adapters="cpu,cpu", batch=32, key="id", shard_rows=200)
"""


def test_a_run_that_is_killed_goes_on(data: Data, tmp_path: Path) -> None:
    out, script = tmp_path / "out.parquet", tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(data.model), str(data.file), str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    try:
        folder = parts.folder_of(out)
        until(lambda: len(list(folder.glob("part-*.parquet"))) >= 3 or process.poll() is not None, "three parts")
        workers = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    assert not out.exists()
    assert psutil.wait_procs(workers, timeout=300)[1] == []  # nobody is left, and nothing
    assert segments(process.pid) == set()
    report = score(data.model, data.file, out, adapters="cpu", batch=32, key="id", shard_rows=200)
    check_rows(out, data)
    assert 600 <= report.before < ROWS
    assert report.before + report.scored == ROWS


def test_the_faster_adapter_does_more(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is held up with its first batch until this one has done three quarters of all."""
    adapters, real, answer = list[Slot](), Machine.slots, Slot._answered

    def noted(self: Machine, wanted: Any) -> list[Slot]:
        adapters.extend(real(self, wanted))
        return adapters

    def answered(self: Slot, board: Any, given: Any) -> None:
        answer(self, board, given)
        if self is adapters[1]:
            until(lambda: adapters[0].counts.rows >= 0.75 * ROWS, "most of the rows by the faster one")

    monkeypatch.setattr(Machine, "slots", noted)
    monkeypatch.setattr(Slot, "_answered", answered)
    report = score(data.model, data.file, tmp_path / "out", adapters="0,0", batch=50, key="id", shard_rows=1000)
    check_rows(tmp_path / "out", data)
    fast, slow = (a["rows"] for a in report.adapters)
    assert fast >= 0.75 * ROWS
    assert fast + slow == ROWS


def test_whether_the_cpu_has_a_share_is_measured_noted_and_kept_to(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are this machine's cores here, so which does more is no constant: what is said, done and noted agrees."""
    monkeypatch.setattr("ort_gpu_ep.scoring.batching.ROUND_S", 0.05)
    given = {"adapters": "0,auto", "batch": 50, "key": "id", "shard_rows": 2000}
    report = score(data.model, data.file, tmp_path / "out", **given)
    check_rows(tmp_path / "out", data)
    declined = any(note.startswith("the CPU has no share: ") for note in report.notes)
    assert [a["adapter"] for a in report.adapters] == ["0"] + ["cpu"] * (not declined)
    assert parts.noted(tmp_path / "out")["CPU"] == (0 if declined else 50)
    for say in (lambda *_: "of no help", None):  # the second time it is not measured
        monkeypatch.setattr("ort_gpu_ep.scoring.batching.declined", say)
        report = score(data.model, data.file, tmp_path / "told", **given)
        assert [a["adapter"] for a in report.adapters] == ["0"]
        (tmp_path / "told" / "part-0000003.parquet").unlink()
    assert "the CPU has no share, as when this output was begun" in report.notes


def test_rows_that_the_model_refuses_get_an_error(tmp_path: Path) -> None:
    write_model(
        tmp_path / "gather.onnx",
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        [("x", ["n"])],
        [("y", ["n", 2])],
        {"table": np.arange(20, dtype="f").reshape(10, 2)},
        TensorProto.INT64,
    )
    x = np.arange(1000) % 10
    x[[3, 500, 999]] = 77
    texts = ["" if k == 10 else str(v) for k, v in enumerate(x)]
    (tmp_path / "x.csv").write_text("id,x\n" + "".join(f"k{k},{t}\n" for k, t in enumerate(texts)))
    report = score(tmp_path / "gather.onnx", tmp_path / "x.csv", tmp_path / "out", adapters="cpu", key="id", batch=64)
    table = parquet.read_table(tmp_path / "out")
    assert table.column("id").to_pylist() == [f"k{k}" for k in range(1000)]
    errors = {k: text for k, text in enumerate(table.column("error").to_pylist()) if text is not None}
    assert set(errors) == {3, 10, 500, 999}
    assert "77" in errors[3]
    assert errors[10] == "column 'x' has no value"
    assert table.column("y").to_pylist()[:5] == [[0, 1], [2, 3], [4, 5], None, [8, 9]]
    assert (report.scored, report.refused) == (996, 4)
    with pytest.raises(ScoringError, match=r"x.csv, row (3|10|500|999) \(counted from 0\): "):
        score(
            tmp_path / "gather.onnx",
            tmp_path / "x.csv",
            tmp_path / "out2",
            adapters="cpu",
            key="id",
            batch=64,
            fail_fast=True,
        )


def test_a_fixed_batch_is_filled_up_and_a_batch_is_measured(data: Data, tmp_path: Path) -> None:
    answer = write_mlp(tmp_path / "four.onnx", 4)
    np.savez(tmp_path / "x.npz", x=data.x[:50])
    report = score(tmp_path / "four.onnx", tmp_path / "x.npz", tmp_path / "out", adapters="cpu")
    assert report.batch == "4: the model fixes it"
    found = parquet.read_table(tmp_path / "out").column("y").combine_chunks().flatten().to_numpy().reshape(-1, 3)
    np.testing.assert_allclose(found, answer(data.x[:50]), atol=1e-4)
    report = score(data.model, tmp_path / "x.npz", tmp_path / "out2", adapters="cpu")
    assert report.batch.startswith("CPU: ")
    assert 1 <= report.adapters[0]["batch"] <= 50
    (tmp_path / "out2" / "part-0000000.parquet").unlink()
    again = score(data.model, tmp_path / "x.npz", tmp_path / "out2", adapters="cpu")
    assert again.batch == f"CPU: {report.adapters[0]['batch']} (as this output was begun with)"
    assert again.adapters[0]["batch"] == report.adapters[0]["batch"]


def test_without_hardware_the_cpu_scores_and_that_is_said(data: Data, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", data.x[:10])
    report = score(data.model, tmp_path / "x.npy", tmp_path / "out", batch=10)
    assert report.adapters[0]["adapter"] == "cpu"
    assert any("no hardware adapter: the CPU has scored" in note for note in report.notes)
    again = score(data.model, tmp_path / "x.npy", tmp_path / "out", batch=10)
    assert (again.before, again.scored) == (10, 0)


def test_what_can_be_known_before_is_said_before(data: Data, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"adapter='7': no such adapter"):
        score(data.model, data.file, tmp_path / "a", adapters="7")
    with pytest.raises(ScoringError, match=r"batch: got 'many', expected auto or a number"):
        score(data.model, data.file, tmp_path / "a", batch="many")
    with pytest.raises(ScoringError, match=r"no column 'name' for the key; it has id, x"):
        score(data.model, data.file, tmp_path / "b", key="name")
    with pytest.raises(ScoringError, match=r"output 'z': model .* has 'y'"):
        score(data.model, data.file, tmp_path / "b", outputs=["z"])
    with pytest.raises(ModelError, match=r"x.parquet: not an ONNX file"):
        score(data.file, data.file, tmp_path / "b")
    parquet.write_table(pa.table({"id": [1], "x": ["a"]}), tmp_path / "texts.parquet")
    with pytest.raises(ScoringError, match=r"texts.parquet: column 'x' is of string, expected numbers for input x"):
        score(data.model, [data.file, tmp_path / "texts.parquet"], tmp_path / "b")
    parquet.write_table(pa.table({"id": [1], "z": lists(data.x[:1])}), tmp_path / "other.parquet")
    with pytest.raises(ScoringError, match=r"other.parquet: no column 'x' for input x .*; it has id, z"):
        score(data.model, [data.file, tmp_path / "other.parquet"], tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_an_output_without_rows_is_refused(data: Data, tmp_path: Path) -> None:
    write_model(
        tmp_path / "sum.onnx",
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)],
        [("x", ["n", 8])],
        [("y", [None, None])],
        {},
    )
    np.save(tmp_path / "x.npy", data.x[:10])
    with pytest.raises(ScoringError, match=r"output 'y' has the shape \[1, 1\] for 10 rows"):
        score(tmp_path / "sum.onnx", tmp_path / "x.npy", tmp_path / "out", adapters="cpu", batch=10)


def test_a_process_that_ends_while_it_starts_says_what_scripts_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "begin", os.abort)
    process = Worker(Process(), PATIENCE_S)
    with pytest.raises(WorkerEndError, match=r"ended \(while it started\); a script that scores needs `if __name__ =="):
        process.open(worker.Setup(Model("m.onnx", "", (), ()), "cpu", {}))
    process.kill()
