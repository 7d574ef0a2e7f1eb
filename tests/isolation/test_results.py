"""What a worker computes is what ONNX Runtime's CPU provider computes, and this process loads no driver for it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep
from ort_gpu_ep.errors import AdapterError, ConfigError
from ort_gpu_ep.plugin.provider import Provider
from tests.isolation.conftest import gpu_of, isolated, mlp, rows
from tests.plugin.cases import assert_close, info, island, make_model, node, open_session, reference

ROOT = Path(__file__).parents[2]
F32, I64, BOOL, F16 = 1, 7, 9, 10
rng = np.random.default_rng(7)


def conv() -> bytes:
    weights = {"W": rng.normal(size=(8, 3, 3, 3)).astype("f"), "B": rng.normal(size=8).astype("f")}
    nodes = [node("Conv", "x W B", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "y")]
    return make_model(nodes, [info("x", [1, 3, 20, 20])], ["y"], weights)


def lstm() -> bytes:
    weights = {
        n: (rng.normal(size=s) / 4).astype("f") for n, s in {"W": (1, 64, 12), "R": (1, 64, 16), "B": (1, 128)}.items()
    }
    return make_model(
        [node("LSTM", "x W R B", "y h c", hidden_size=16)], [info("x", [5, 2, 12])], ["y", "h", "c"], weights
    )


def around_an_island() -> bytes:
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0]),
        node("MatMul", "t x", "a"),
        node("Add", "a E", "s"),
        island("s", "b"),
        node("Tanh", "b", "y"),
    ]
    return make_model(nodes, [info("x", ["N", 16])], ["y"], {"E": 20 * np.eye(16, dtype="f")})


def several_outputs() -> bytes:
    nodes = [node("Split", "x", "a b c", axis=1, num_outputs=3), node("Neg", "b", "d"), node("ReduceSum", "c k", "e")]
    return make_model(nodes, [info("x", ["N", 16])], ["a", "d", "e"], {"k": np.array([1])})


def other_types() -> bytes:
    nodes = [
        node("Add", "i j", "k"),
        node("Less", "i j", "b"),
        node("Not", "b", "n"),
        node("Cast", "h", "f", to=F32),
        node("Mul", "f f", "g"),
        node("Cast", "g", "o", to=F16),
    ]
    inputs = [info("i", ["N"], I64), info("j", ["N"], I64), info("h", ["N"], F16)]
    return make_model(nodes, inputs, [info("k", ["N"], I64), info("n", ["N"], BOOL), info("o", ["N"], F16)])


def types_that_kernels_ask_for() -> bytes:
    """What is otherwise for an element type: how it is read, its range, its fusions."""
    nodes = [
        node("Xor", "p q", "a"),
        node("Or", "a p", "o"),
        node("Cast", "x", "t", to=BOOL),
        node("And", "t p", "u"),
        node("QuantizeLinear", "x s z", "i8"),
        node("QuantizeLinear", "x s uz", "u8"),
        node("OneHot", "n depth values", "hot"),
        node("DynamicQuantizeLinear", "x", "dq ds dz"),
        node("DequantizeLinear", "dq ds dz", "back"),
    ]
    constants = {
        "s": np.float32(0.1),
        "z": np.int8(-3),
        "uz": np.uint8(7),
        "depth": np.array(5),
        "values": np.array([0.5, 2], "f"),
    }
    inputs = [info("p", ["N"], BOOL), info("q", ["N"], BOOL), info("x", ["N"]), info("n", ["N"], I64)]
    outputs = [
        info(name, None, kind)
        for name, kind in {"o": BOOL, "u": BOOL, "i8": 3, "u8": 2, "hot": F32, "back": F32}.items()
    ]
    return make_model(nodes, inputs, outputs, constants)


def branches() -> bytes:
    """Dispatches that bind what others read."""
    nodes = [
        node("Softmax", "x", "a"),
        node("Softmax", "x", "b", axis=0),
        node("Softmax", "a", "c"),
        node("Softmax", "b", "d"),
        node("Softmax", "c", "e"),
        node("Softmax", "d", "f"),
        node("Sum", "e f", "y"),
    ]
    return make_model(nodes, [info("x", ["N", 16])], ["y"])


def big() -> bytes:
    return make_model([node("Relu", "x", "a"), node("Sqrt", "a", "y")], [info("x", ["N", 1024])], ["y"])


CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "mlp": (mlp(), {"x": rows(4)}),
    "conv": (conv(), {"x": rng.normal(size=(1, 3, 20, 20)).astype("f")}),
    "lstm": (lstm(), {"x": rng.normal(size=(5, 2, 12)).astype("f")}),
    "island": (around_an_island(), {"x": rows(3)}),
    "outputs": (several_outputs(), {"x": rows(5)}),
    "types": (
        other_types(),
        {"i": np.arange(-3, 4) << 40, "j": np.arange(7)[::-1].copy(), "h": np.arange(7, dtype=np.float16)},
    ),
    "element types": (
        types_that_kernels_ask_for(),
        {
            "p": rng.random(37) < 0.5,
            "q": rng.random(37) < 0.5,
            "n": rng.integers(0, 5, 37),
            "x": (30 * rng.normal(size=37)).round().astype("f"),
        },
    ),
    "16 MiB": (big(), {"x": rng.normal(size=(4096, 1024)).astype("f")}),
    "branches": (branches(), {"x": rows(6)}),
    "no rows": (mlp(), {"x": rows(0)}),
}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    model, feeds = CASES[name]
    opened = isolated(model)
    for _ in range(2):
        assert_close(opened.run(**feeds), reference(model, **feeds))
    assert opened.state.partitions
    assert not opened.state.failures, list(opened.state.events)
    assert len(opened.state.partitions) == (2 if name == "island" else 1)


def test_tensors_that_stay_on_the_host_are_copied_once_each_way() -> None:
    """ONNX Runtime adds no copies to a device memory of ours: its tensors are where the worker's memory is filled
    from."""
    model, x = mlp(), rows(4)
    opened = isolated(model)
    opened.run(x=x)
    before = opened.state.copies.as_dict()
    opened.run(x=x)
    copied = {k: v - before[k] for k, v in opened.state.copies.as_dict().items()}
    assert copied == {
        "host_to_device": 1,
        "host_to_device_nbytes": x.nbytes,
        "device_to_host": 1,
        "device_to_host_nbytes": 4 * 8 * 4,
        "device_to_device": 0,
        "device_to_device_nbytes": 0,
    }


def test_dynamic_shapes_one_after_another() -> None:
    model = mlp()
    opened = isolated(model)
    for count in (1, 40, 3, 0, 7000, 3, *range(10, 20), 1):
        x = rows(count, count)
        assert_close(opened.run(x=x), reference(model, x=x))
    assert not opened.state.failures


def test_weights_larger_than_a_message_but_not_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the worker gets the weights through shared memory."""
    from ort_gpu_ep.plugin import fallback

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(fallback, "WeightFile", full)
    weights = {"W": rng.normal(size=(16, 4096)).astype("f"), "V": rng.normal(size=(16, 3)).astype("f")}
    model = make_model(
        [node("MatMul", "x W", "a"), node("MatMul", "x V", "b")], [info("x", ["N", 16])], ["a", "b"], weights
    )
    opened = isolated(model)
    assert_close(opened.run(x=rows(4)), reference(model, x=rows(4)))
    assert {e.kind for e in opened.state.events} == {"warning"}


def test_threads_share_a_worker() -> None:
    models = [mlp(), around_an_island(), several_outputs()]
    opened = [isolated(m) for m in models]
    assert len({gpu_of(o).pid for o in opened}) == 1
    wrong: list[str] = []

    def work(number: int) -> None:
        for i in range(20):
            kind = (number + i) % 3
            x = rows(8 * (i % 3 + 1), 100 * number + i)
            for got, want in zip(opened[kind].run(x=x), reference(models[kind], x=x), strict=True):
                if not np.allclose(got, want, rtol=1e-3, atol=1e-3):
                    wrong.append(f"model {kind}: {np.abs(got - want).max()}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not any(o.state.failures for o in opened)


def test_strict_and_verify() -> None:
    model = mlp()
    opened = isolated(model, strict=1, verify=1)
    assert_close(opened.run(x=rows(4)), reference(model, x=rows(4)))
    assert not opened.state.events


@pytest.mark.parametrize("placement", ["auto", "gpu"])
def test_the_drop_in_class(placement: str) -> None:
    model = mlp()
    adapter = {"adapter": "0"} if placement == "auto" else {}
    session = ort_gpu_ep.InferenceSession(
        model, provider_options={"isolation": "process", "placement": placement, **adapter}
    )
    for _ in range(6):
        assert_close(session.run(None, {"x": rows(4)}), reference(model, x=rows(4)))
    explained = session.explain()
    assert placement == "auto" or (explained.plans and explained.memory[0].exact)
    assert session.stats()["fallbacks"] == 0


def test_explain_gives_the_plan_of_the_other_mode() -> None:
    plans = []
    for options in ({"isolation": "process"}, {}):
        session = ort_gpu_ep.InferenceSession(mlp(), provider_options={"placement": "gpu", **options})
        session.run(None, {"x": rows(4)})
        plans.append([str(p) for p in session.explain().plans])
    assert plans[0] == plans[1] != []


def test_deadly_faults_need_a_worker() -> None:
    with pytest.raises(ConfigError, match="isolation=process"):
        ort_gpu_ep.InferenceSession(mlp(), provider_options={"placement": "gpu", "faults": "abort@1"})


def test_errors_of_the_worker_keep_their_class() -> None:
    with pytest.raises(ConfigError, match="faults="):
        ort_gpu_ep.InferenceSession(
            mlp(), provider_options={"placement": "gpu", "isolation": "process", "faults": "explode@1"}
        )
    with pytest.raises(AdapterError, match="no such adapter"):
        ort_gpu_ep.InferenceSession(
            mlp(), provider_options={"placement": "gpu", "isolation": "process", "adapter": "Voodoo"}
        )


@pytest.mark.parametrize("way", ["plain", "drop-in", "auto"])
def test_this_process_loads_no_driver(way: str) -> None:
    opening = {
        "plain": "s = onnxruntime.InferenceSession(m, providers=[('WgpuExecutionProvider', {'isolation': 'process', "
        "'placement': 'gpu'}),"
        " 'CPUExecutionProvider'])",
        "drop-in": "s = ort_gpu_ep.InferenceSession(m, provider_options={'isolation': 'process', 'placement': 'gpu'})",
        "auto": "s = ort_gpu_ep.InferenceSession(m, provider_options={'isolation': 'process', 'adapter': '0'})",
    }[way]
    program = f"""
        import sys, onnxruntime, ort_gpu_ep
        from tests.isolation.conftest import mlp, rows
        for name in [n for n in list(sys.modules) if n.split('.')[0] == 'wgpu']:
            raise AssertionError(name)
        ort_gpu_ep.register()
        m = mlp()
        {opening}
        for _ in range(3):
            s.run(None, {{'x': rows(4)}})
        assert {way != "auto"} or s.wait_ready(120)
        maps = open('/proc/self/maps').read() if sys.platform == 'linux' else ''
        print('wgpu' in sys.modules, 'vulkan' in maps, 'wgpu_native' in maps)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "False False False", done.stdout + done.stderr


def test_in_process_sessions_still_use_device_memory() -> None:
    """The slot by which an isolated session asks for host memory is empty in the others."""
    model = mlp()
    opened = open_session(model)
    assert_close(opened.run(x=rows(4)), reference(model, x=rows(4)))
    assert opened.state.copies.host_to_device == 1


@pytest.mark.parametrize("name", ["mlp", "island", "outputs", "no rows"])
def test_where_onnxruntime_does_not_ask_for_the_memory_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before API 27 tensors come at addresses of device memory; their content is on the host then."""
    monkeypatch.delitem(Provider._callbacks, "GetDefaultMemoryDevice")
    model, feeds = CASES[name]
    opened = isolated(model)
    for _ in range(2):
        assert_close(opened.run(**feeds), reference(model, **feeds))
    assert not opened.state.failures, list(opened.state.events)
