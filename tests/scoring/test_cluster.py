"""Runs on a cluster as this process sees them, without Ray: a stand-in with its interface. test_scoring_ray.py has a
real one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from ort_gpu_ep import ModelError, ScoringError
from ort_gpu_ep.scoring import score, worker
from ort_gpu_ep.scoring.cluster import Cluster
from ort_gpu_ep.scoring.model import Model, read_model
from ort_gpu_ep.scoring.remote import Broadcast, Put, Remote, reason
from ort_gpu_ep.scoring.transport import GoneError, Worker, WorkerEndError
from tests.scoring.conftest import ROWS, Data, check_rows, write_mlp

_numbers = count()

MODEL = Model("m.onnx", "", (), ())


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class ActorUnschedulableError(RayError):
    pass


class RayTaskError(RayError):
    def as_instanceof_cause(self) -> Exception:
        return ValueError("in the actor")


class Reference:
    def __init__(self, value: Any) -> None:
        self.value, self._number = value, next(_numbers)

    def hex(self) -> str:
        return str(self._number)


class Ray(ModuleType):
    """One process that has it all. raises: what the next call of an actor ends with."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(
            RayError=RayError,
            GetTimeoutError=GetTimeoutError,
            RayTaskError=RayTaskError,
            ActorUnschedulableError=ActorUnschedulableError,
        )
        self.is_up, self.killed, self.raises, self.is_full = False, 0, list[Exception](), False
        self._nodes = [
            {"NodeID": f"n{k}", "NodeManagerAddress": f"10.0.0.{k}", "Resources": has, "Alive": True}
            for k, has in enumerate(nodes)
        ]
        self._nodes.append(
            {"NodeID": "dead", "NodeManagerAddress": "10.0.0.99", "Resources": {"CPU": 4}, "Alive": False}
        )

    def init(self, **settings: Any) -> None:
        self.is_up = True

    def shutdown(self) -> None:
        self.is_up = False

    def is_initialized(self) -> bool:
        return self.is_up

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes

    def put(self, value: Any) -> Reference:
        if self.is_full:
            raise RayError("the store is full")
        return Reference(value)

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        if timeout is not None and self.raises:
            raise self.raises.pop()
        return reference.value

    def remote(self, kind: Any) -> Any:
        made = kind()

        def call(function: Any, *given: Any) -> Reference:
            return Reference(None if self.raises else made.call(function, *given))

        return SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda: SimpleNamespace(call=SimpleNamespace(remote=call)))
        )

    def kill(self, actor: Any) -> None:
        self.killed += 1


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ray]]:
    """A cluster of nodes with these resources."""
    listening = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listening.getsockname()[1]}")

    def make(*nodes: dict[str, float]) -> Ray:
        ray, strategies = Ray(*nodes), ModuleType("ray.util.scheduling_strategies")
        strategies.NodeAffinitySchedulingStrategy = lambda number, soft: number  # type: ignore[attr-defined]
        for name, module in (
            ("ray", ray),
            ("ray.util", ModuleType("ray.util")),
            ("ray.util.scheduling_strategies", strategies),
        ):
            monkeypatch.setitem(sys.modules, name, module)
        return ray

    with listening:
        yield make


def test_a_run_on_a_cluster(data: Data, tmp_path: Path, stand_in: Callable[..., Ray]) -> None:
    ray = stand_in({"CPU": 2})
    report = score(data.model, data.file, tmp_path / "out", batch=100, key="id", shard_rows=800, ray="auto")
    check_rows(tmp_path / "out", data)
    assert (report.scored, [a["name"] for a in report.adapters]) == (ROWS, ["10.0.0.0: CPU"])
    assert any("no node has a GPU, or the resource 'adapter'" in note for note in report.notes)
    assert (ray.is_up, ray.killed) == (False, 1)
    (tmp_path / "out" / "part-0000003.parquet").unlink()
    # without it, the same
    report = score(data.model, data.file, tmp_path / "out", batch=100, key="id", shard_rows=800, adapters="cpu")
    check_rows(tmp_path / "out", data)
    assert (report.before, report.scored) == (ROWS - 800, 800)


def test_a_cluster_that_is_there_already_stays(data: Data, tmp_path: Path, stand_in: Callable[..., Ray]) -> None:
    ray = stand_in({"CPU": 2})
    ray.init()
    np.save(tmp_path / "x.npy", data.x[:10])
    assert score(data.model, tmp_path / "x.npy", tmp_path / "out", adapters="cpu", ray="local").batch.startswith(
        "CPU: "
    )
    assert ray.is_up


@pytest.mark.parametrize(
    ("nodes", "wanted", "found"),
    [
        ([{"CPU": 8, "GPU": 2}, {"CPU": 8}], ["all"], [("n0", "auto", "num_gpus")] * 2),
        (
            [{"CPU": 8, "adapter": 1}, {"CPU": 8, "GPU": 1}],
            ["all"],
            [("n0", "auto", "resources"), ("n1", "auto", "num_gpus")],
        ),
        ([{"CPU": 8}, {}, {"CPU": 1}], ["all"], [("n0", "cpu", "num_cpus"), ("n2", "cpu", "num_cpus")]),
        (
            [{"CPU": 8, "GPU": 1}, {"CPU": 1}],
            ["all", "cpu"],
            [("n0", "auto", "num_gpus"), ("n0", "cpu", "num_cpus"), ("n1", "cpu", "num_cpus")],
        ),
        ([{"CPU": 8}, {"CPU": 1}], ["0", "0"], [("n0", "0", "num_cpus")] * 2 + [("n1", "0", "num_cpus")] * 2),
    ],
)
def test_where_workers_are(nodes: Any, wanted: Any, found: Any, stand_in: Callable[..., Ray]) -> None:
    stand_in(*nodes)
    places = Cluster(MODEL, {}, 1.0, "auto")._places(wanted)
    assert [(node.number, adapter, next(iter(needs))) for node, adapter, needs in places] == found


def test_no_node_can_have_a_worker(stand_in: Callable[..., Ray]) -> None:
    stand_in({"memory": 5})
    with pytest.raises(
        ScoringError,
        match=r"no node of the cluster has a CPU for an actor: 10.0.0.0 has neither; start Ray with --num-cpus",
    ):
        Cluster(MODEL, {}, 1.0, "auto")._places(["all"])


def test_what_an_actor_does_not_do_is_told(stand_in: Callable[..., Ray]) -> None:
    ray = stand_in({"CPU": 1})
    actor = Worker(Remote("10.0.0.0", {}), 300.0)
    for raised, expected, message in [
        (
            GetTimeoutError(),
            WorkerEndError,
            "the actor on 10.0.0.0 did not start within 300 s and was ended: what it needs of that node",
        ),
        (
            RayError(
                "The actor died unexpectedly.\nip: 10.0.0.0\nThe actor is dead because its worker process has "
                "died. Worker exit"
            ),
            WorkerEndError,
            r"the actor on 10.0.0.0 ended \(The actor is dead because its worker process has died",
        ),
        (ActorUnschedulableError("The actor is not schedulable"), GoneError, "the node 10.0.0.0 is gone"),
        (RayTaskError(), ValueError, "in the actor"),
    ]:
        ray.raises = [raised]
        with pytest.raises(expected, match=message):
            actor.call(worker.identify)
    assert ray.killed == 1  # it may hang only where it did not answer


def test_the_line_of_a_message_that_tells() -> None:
    assert (
        reason(
            RayError(
                "The actor died because of an error raised in its creation task\n  File x\nModuleNotFoundError: No "
                "module named 'ort_gpu_ep'"
            )
        )
        == "ModuleNotFoundError: No module named 'ort_gpu_ep'"
    )
    assert reason(RayError("")) == "RayError"


def test_an_adapter_that_another_process_still_has_is_asked_for_again(
    data: Data, stand_in: Callable[..., Ray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def claimed(adapter: str, options: Any) -> Any:
        from ort_gpu_ep import AdapterError

        raise AdapterError("all 1 adapters of this machine are claimed")

    stand_in({"CPU": 1})
    model = read_model(data.model)
    actor = Worker(Remote("10.0.0.0", {}), 300.0)
    monkeypatch.setattr("ort_gpu_ep.scoring.visible.chosen", claimed)
    for adapter, kind in (("auto", "device"), ("1", "fatal")):
        failed = actor.open(worker.Setup(model, adapter, {}, Broadcast(model).load))
        assert failed is not None
        assert (failed.kind, "are claimed" in failed.message) == (kind, True)


def test_a_model_whose_weights_lie_beside_it_is_whole_on_each_node(
    tmp_path: Path, stand_in: Callable[..., Ray], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in()
    write_mlp(tmp_path / "mlp.onnx")
    onnx.save(
        onnx.load(tmp_path / "mlp.onnx"),
        tmp_path / "apart.onnx",
        save_as_external_data=True,
        location="apart.bin",
        size_threshold=0,
    )
    model = read_model(tmp_path / "apart.onnx")
    assert model.weights == ("apart.bin",)
    setup = worker.Setup(model, "cpu", {}, Broadcast(model).load, "10.0.0.0")
    (tmp_path / "apart.bin").unlink()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    actor = Worker(Remote("10.0.0.0", {}), 300.0)
    assert actor.open(setup) is None
    assert (actor.name, actor.kind) == ("10.0.0.0: CPU", "CPU")
    (folder,) = (tmp_path / "temporary").iterdir()
    assert sorted(p.name for p in folder.iterdir()) == ["0", "model.onnx"]
    actor.end()
    assert not folder.exists()
    with pytest.raises(ModelError, match=r"apart.onnx: .*apart.bin"):
        Broadcast(model)


@pytest.mark.parametrize("location", ["../payload", "/dev/zero", "{folder}/payload", "fifo"])
def test_names_in_a_model_lead_nowhere(
    location: str, tmp_path: Path, stand_in: Callable[..., Ray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither here, where the files are read, nor on the other node, where they are written."""
    stand_in()
    (tmp_path / "m").mkdir()
    (tmp_path / "temporary").mkdir()
    for file in (tmp_path / "payload", tmp_path / "temporary" / "payload"):
        file.write_text("the user's")
    if os.name != "nt":
        os.mkfifo(tmp_path / "m" / "fifo")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    write_mlp(tmp_path / "m" / "mlp.onnx")
    model = onnx.load(tmp_path / "m" / "mlp.onnx")
    for tensor in model.graph.initializer:
        tensor.external_data.add(key="location", value=location.format(folder=tmp_path))
    (tmp_path / "m" / "mlp.onnx").write_bytes(model.SerializeToString())
    inside = read_model(tmp_path / "m" / "mlp.onnx")
    assert inside.weights == (), "the data are in the model"
    actor = Worker(Remote("10.0.0.0", {}), 300.0)
    assert actor.open(worker.Setup(inside, "cpu", {}, Broadcast(inside).load)) is None
    actor.end()
    assert [(p.name, p.read_text()) for p in (tmp_path / "temporary").iterdir()] == [("payload", "the user's")]
    for tensor in model.graph.initializer:
        tensor.data_location = onnx.TensorProto.EXTERNAL
    (tmp_path / "m" / "mlp.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="external data in"):
        read_model(tmp_path / "m" / "mlp.onnx")


def test_a_store_without_room(stand_in: Callable[..., Ray]) -> None:
    stand_in().is_full = True
    with pytest.raises(
        ScoringError, match=r"Ray's object store takes no more \(the store is full\): start Ray with more"
    ):
        Put({"x": np.zeros(3)})


def test_no_ray_and_no_cluster(
    data: Data, tmp_path: Path, stand_in: Callable[..., Ray], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in({"CPU": 1})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(
            ScoringError, match=rf"no Ray cluster answers at '{address}' .*\. Start one \(ray start --head"
        ):
            score(data.model, data.file, tmp_path / "out", ray=address)
        monkeypatch.delenv("RAY_ADDRESS")
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        with pytest.raises(ScoringError, match=r"no Ray cluster answers at 'auto' \(none was started on this machine"):
            score(data.model, data.file, tmp_path / "out", ray="auto")
        (tmp_path / "ray").mkdir()  # one that was killed leaves its address
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        with pytest.raises(ScoringError, match=f"no Ray cluster answers at '{address}'"):
            score(data.model, data.file, tmp_path / "out", ray="auto")
    for wrong in ("nonsense", ":80", "host:", "ray://x"):
        with pytest.raises(ScoringError, match=f"ray: got '{wrong}', expected HOST:PORT of a Ray cluster, auto"):
            score(data.model, data.file, tmp_path / "out", ray=wrong)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ScoringError, match=r"needs ray, which can't be imported .*pip install 'ray\[data,serve\]'"):
        score(data.model, data.file, tmp_path / "out", ray="auto")
    assert not (tmp_path / "out").exists()
