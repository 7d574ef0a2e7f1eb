"""What programs that know nothing of us do with onnxruntime, patched: requests in threads, asyncio, copies, other
processes."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep as ort
from tests.session.conftest import NODES, assert_close, on_the_cpu

Array = np.ndarray[Any, Any]
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.fixture(params=["gpu", "auto"])
def patched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ort.patch(
        {"placement": request.param, "adapter": "0", "cache_dir": tmp_path / "cache", "load": "off"}, say=False
    ):
        yield request.param


@pytest.fixture
def wanted(mlp: bytes, x: Array) -> list[Any]:
    """The answer of each number of rows, asked before anything is patched."""
    return [on_the_cpu(mlp, {"x": x[:rows]}) for rows in range(1, 5)]


def test_a_session_for_each_request(wanted: list[Any], patched: str, mlp: bytes, x: Array, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mlp)

    def answer(k: int) -> list[Any]:
        session = onnxruntime.InferenceSession(mlp if k % 2 else str(path), providers=[CPU])
        return list(session.run(None, {"x": x[: k % 4 + 1]}))

    with ThreadPoolExecutor(4) as threads:
        for k, got in enumerate(threads.map(answer, range(8))):
            assert_close(got, wanted[k % 4])


def test_a_session_for_all_requests(wanted: list[Any], patched: str, mlp: bytes, x: Array) -> None:
    session = onnxruntime.InferenceSession(mlp)
    with ThreadPoolExecutor(8) as threads:
        for k, got in enumerate(threads.map(lambda k: session.run(None, {"x": x[: k % 4 + 1]}), range(40))):
            assert_close(got, wanted[k % 4])


def test_asyncio(wanted: list[Any], patched: str, mlp: bytes, x: Array) -> None:
    session = onnxruntime.InferenceSession(mlp)

    async def ask(k: int) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        session.run_async(None, {"x": x[: k % 4 + 1]}, lambda *a: loop.call_soon_threadsafe(done.set_result, a), k)
        got, mine, error = await done
        assert (mine, error) == (k, "")
        assert_close(got, wanted[k % 4])
        assert_close(await asyncio.to_thread(session.run, None, {"x": x[: k % 4 + 1]}), wanted[k % 4])

    async def ask_all() -> None:
        await asyncio.gather(*(ask(k) for k in range(12)))

    asyncio.run(ask_all())


def test_a_subclass_that_pickles_its_arguments(wanted: list[Any], patched: str, mlp: bytes, x: Array) -> None:
    class Picklable(onnxruntime.InferenceSession):  # type: ignore[misc, name-defined]
        def __init__(self, model: bytes, **named: Any) -> None:
            super().__init__(model, **named)
            self.given = {"model": model, **named}

        def __getstate__(self) -> dict[str, Any]:
            return self.given

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.__init__(**state)  # type: ignore[misc]

    globals()["Picklable"] = Picklable
    Picklable.__qualname__ = "Picklable"
    session = Picklable(mlp, providers=[CPU])
    for other in (session, pickle.loads(pickle.dumps(session)), copy.copy(session), copy.deepcopy(session)):
        assert type(other) is Picklable
        assert_close(other.run(None, {"x": x[:2]}), wanted[1])


def test_a_program_that_looks_which_provider_it_has(wanted: list[Any], patched: str, mlp: bytes, x: Array) -> None:
    with pytest.warns(UserWarning, match=CUDA):
        session = onnxruntime.InferenceSession(
            mlp, providers=[(CUDA, {"device_id": 0, "arena_extend_strategy": "kNextPowerOfTwo"}), CPU]
        )
    assert CUDA not in session.get_providers()
    assert session.get_providers()[-1] == CPU
    assert set(session.get_provider_options()) == set(session.get_providers())
    assert_close(session.run(None, {"x": x[:3]}), wanted[2])
    if patched == "gpu":
        assert session.explain().count("gpu") == NODES
    again = onnxruntime.InferenceSession(mlp, providers=onnxruntime.get_available_providers())
    assert_close(again.run(None, {"x": x[:3]}), wanted[2])


def test_a_notebook_makes_it_anew(wanted: list[Any], patched: str, mlp: bytes, x: Array) -> None:
    for _ in range(6):
        session = onnxruntime.InferenceSession(mlp)
        assert repr(session)
        assert {session: 1}[session] == 1
        assert_close(session.run(None, {"x": x[:1]}), wanted[0])


@pytest.mark.parametrize(
    "options", [{"placement": "gpu"}, {"placement": "auto", "adapter": "software"}], ids=["gpu", "auto"]
)
def test_all_available_providers_are_asked_in_their_order(
    options: dict[str, str], wanted: list[Any], mlp: bytes, x: Array
) -> None:
    """onnxruntime has ours behind the CPU's, where no node is left for it."""
    names = ort.get_available_providers()
    assert names[0] == ort.EP_NAME
    assert sorted(names[1:]) == sorted(n for n in onnxruntime.get_available_providers() if n != ort.EP_NAME)
    session = ort.InferenceSession(mlp, providers=names, provider_options=[options, *[{}] * len(names[1:])])
    assert session.wait_ready(300.0)
    assert_close(session.run(None, {"x": x[:3]}), wanted[2])
    assert (session.runner is not None) == (options["placement"] == "auto")
    assert session.get_providers()[0] == ort.EP_NAME or session.runner is not None
