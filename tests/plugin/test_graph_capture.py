"""Graph capture: onnxruntime's own sessions, whose runs with the same values are replayed past its executor."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep
from models.language import language_model
from ort_gpu_ep import plugin
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.plugin import factory
from ort_gpu_ep.plugin.graph_capture import CapturingPartition, CapturingProvider
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.runtime import recording
from tests.plugin.cases import (
    Opened,
    assert_close,
    device_value,
    info,
    island,
    make_model,
    node,
    open_session,
    raises,
    reference,
)

pytestmark = pytest.mark.usefixtures("calls")

Array = np.ndarray[Any, Any]
SIDE = 8


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often onnxruntime has asked for a replay, and how often its executor has come to a partition."""
    count: Counter[str] = Counter()
    replay, compute = CapturingProvider.replay_graph, CapturingPartition.compute

    def counted_replay(self: CapturingProvider, number: int) -> None:
        count["replays"] += 1
        replay(self, number)

    def counted_compute(self: CapturingPartition, state: int, context: int) -> None:
        count["executed"] += 1
        compute(self, state, context)

    monkeypatch.setattr(CapturingProvider, "replay_graph", counted_replay)
    monkeypatch.setattr(CapturingPartition, "compute", counted_compute)
    return count


@pytest.fixture
def model(rng: np.random.Generator) -> bytes:
    """y = softmax(x @ W), z = relu(y) - 0.1, for x: [N, SIDE]."""
    return make_model(
        [node("MatMul", "x W", "h"), node("Softmax", "h", "y"), node("Relu", "y", "r"), node("Sub", "r c", "z")],
        [info("x", ["N", SIDE])],
        ["y", "z"],
        {"W": rng.normal(size=(SIDE, SIDE)).astype("f"), "c": np.float32(0.1)},
    )


class Bound:
    """A binding of values on the device. rows: of x."""

    def __init__(self, opened: Opened, rows: int = 4, graph: int | None = None) -> None:
        self.opened, self.binding, self.options = opened, opened.session.io_binding(), onnxruntime.RunOptions()
        if graph is not None:
            self.options.add_run_config_entry("gpu_graph_id", str(graph))
        self.bind(rows)

    def bind(self, rows: int) -> None:
        self.values = {n: device_value(self.opened, np.zeros((rows, SIDE), "f")) for n in "xyz"}
        self.binding.bind_ortvalue_input("x", self.values["x"])
        for name in "yz":
            self.binding.bind_ortvalue_output(name, self.values[name])

    def run(self, x: Array) -> list[Array]:
        self.values["x"].update_inplace(x)
        self.opened.session.run_with_iobinding(self.binding, self.options)
        return [self.values[n].numpy() for n in "yz"]

    def check(self, model: bytes, rng: np.random.Generator) -> None:
        x = rng.normal(size=self.values["x"].shape()).astype("f")
        assert_close(self.run(x), reference(model, x=x))


def captured(model: bytes, **options: object) -> Opened:
    return open_session(model, graph_capture=1, **{"strict": 1, **options})


# ---- what is replayed


def test_a_run_is_made_once_and_then_replayed_with_what_its_inputs_hold(
    model: bytes, rng: np.random.Generator, calls: Counter[str]
) -> None:
    bound = Bound(opened := captured(model))
    for k in range(5):
        bound.check(model, rng)
        assert calls == Counter(executed=1, replays=k)
    assert opened.state.partitions[0].runs == 5
    assert not opened.state.events


def test_without_the_option_nothing_is_asked_about(model: bytes, rng: np.random.Generator) -> None:
    bound = Bound(opened := open_session(model, strict=1))
    for _ in range(3):
        bound.check(model, rng)
    assert not any(isinstance(partition, CapturingPartition) for partition in opened.state.partitions)


@pytest.mark.parametrize("mask", ["whole", "in part"])
def test_tokens_of_a_decoder_that_writes_its_caches_in_place(mask: str, calls: Counter[str]) -> None:
    """A token is computed once: a run that is made again would change what it reads. mask: what of it is uploaded;
    onnxruntime-genai leaves out the zeros behind."""
    rows, prompt, steps = 24, [5, 17, 3, 44], 12
    net = language_model(layers=2, width=64, heads=4, groups=2, vocabulary=64, context=rows).SerializeToString()
    cpu = onnxruntime.InferenceSession(net, providers=["CPUExecutionProvider"])
    opened = captured(net)
    caches = {i.name: np.zeros((1, i.shape[1], rows, i.shape[3]), "f") for i in cpu.get_inputs() if "past" in i.name}
    values = {name: device_value(opened, cache) for name, cache in caches.items()}
    logits = device_value(opened, np.zeros((1, 1, 64), "f"))
    ids, ones = device_value(opened, np.zeros((1, 1), np.int64)), device_value(opened, np.zeros((1, rows), np.int64))
    binding = opened.session.io_binding()
    binding.bind_ortvalue_input("input_ids", ids)
    binding.bind_ortvalue_input("attention_mask", ones)
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
    binding.bind_ortvalue_output("logits", logits)
    token, seen = prompt[0], list[int]()
    for k in range(steps):
        attended = np.zeros((1, rows), np.int64)
        attended[0, : k + 1] = 1
        feeds = {"input_ids": np.array([[token]]), "attention_mask": attended, **caches}
        results = dict(zip((o.name for o in cpu.get_outputs()), cpu.run(None, feeds), strict=True))
        caches = {name: results[name.replace("past_key_values", "present")] for name in caches}
        ids.update_inplace(feeds["input_ids"])
        if mask == "whole":
            ones.update_inplace(attended)
        else:
            part = np.ones(k + 1, np.int64)
            memory.copy_in(opened.state.gpu, ones.data_ptr(), part.ctypes.data, part.nbytes)
        opened.session.run_with_iobinding(binding)
        np.testing.assert_allclose(logits.numpy(), results["logits"], rtol=2e-4, atol=2e-4)
        token = prompt[k + 1] if k + 1 < len(prompt) else int(results["logits"][0, -1].argmax())
        seen.append(int(logits.numpy()[0, -1].argmax()))
        assert seen[-1] == int(results["logits"][0, -1].argmax())
    assert calls == Counter(executed=1, replays=steps - 1)


def test_each_number_has_values_of_its_own(model: bytes, rng: np.random.Generator, calls: Counter[str]) -> None:
    opened = captured(model)
    bounds = [Bound(opened, 2, 1), Bound(opened, 5, 2), Bound(opened, 2, 3)]
    for _ in range(3):
        for bound in bounds:
            bound.check(model, rng)
    assert calls == Counter(executed=3, replays=6)


def test_values_of_a_run_that_makes_its_outputs_itself_are_not_captured_before_they_stay(
    model: bytes, rng: np.random.Generator, calls: Counter[str]
) -> None:
    """onnxruntime has allocated them in the first run, and gives them to the second."""
    opened = captured(model)
    x, binding = device_value(opened, np.zeros((3, SIDE), "f")), opened.session.io_binding()
    binding.bind_ortvalue_input("x", x)
    for name in "yz":
        binding.bind_output(name, "gpu")
    for k in range(4):
        x.update_inplace(array := rng.normal(size=(3, SIDE)).astype("f"))
        opened.session.run_with_iobinding(binding)
        assert_close(binding.copy_outputs_to_cpu(), reference(model, x=array))
        assert calls == Counter(executed=min(k + 1, 2), replays=max(k - 1, 0))


# ---- what is not


def test_values_of_the_host_go_through_onnxruntime(model: bytes, rng: np.random.Generator, calls: Counter[str]) -> None:
    """Nobody would copy them, and each run has others."""
    opened = captured(model)
    for k in range(4):
        x = rng.normal(size=(4, SIDE)).astype("f")
        assert_close(opened.session.run(["z"] if k % 2 else None, {"x": x}), reference(model, x=x)[k % 2 :])
    assert calls == Counter(executed=4)


def test_outputs_on_the_host_go_through_onnxruntime(
    model: bytes, rng: np.random.Generator, calls: Counter[str]
) -> None:
    opened = captured(model)
    x, binding = device_value(opened, np.zeros((4, SIDE), "f")), opened.session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_output("y", "cpu")
    for _ in range(4):
        x.update_inplace(array := rng.normal(size=(4, SIDE)).astype("f"))
        opened.session.run_with_iobinding(binding)
        assert_close(binding.copy_outputs_to_cpu(), reference(model, x=array)[:1])
    assert calls == Counter(executed=4)


def test_a_run_can_be_left_out(model: bytes, rng: np.random.Generator, calls: Counter[str]) -> None:
    bound = Bound(captured(model), graph=-1)
    for _ in range(3):
        bound.check(model, rng)
    assert calls == Counter(executed=3)


@pytest.mark.parametrize("rows", [4, 6], ids=["as many rows", "more rows"])
def test_values_that_are_gone_are_not_replayed(
    rows: int, model: bytes, rng: np.random.Generator, calls: Counter[str]
) -> None:
    """Bound anew, the program having dropped the old ones: others may be at their addresses."""
    bound = Bound(captured(model))
    for _ in range(2):
        bound.check(model, rng)
    bound.bind(rows)
    gc.collect()
    for _ in range(2):
        bound.check(model, rng)
    assert calls == Counter(executed=2, replays=2)


def test_a_graph_is_captured_anew_once_it_was_released(
    model: bytes, rng: np.random.Generator, calls: Counter[str]
) -> None:
    """Bound anew, the program keeping the old ones."""
    bound = Bound(opened := captured(model), graph=7)
    for _ in range(2):
        bound.check(model, rng)
    old = bound.values
    before = [old[n].numpy() for n in "yz"]
    bound.bind(4)
    release(opened, 7)
    for _ in range(2):
        bound.check(model, rng)
    assert calls == Counter(executed=2, replays=2)
    assert_close([old[n].numpy() for n in "yz"], before)
    release(opened, 7)
    release(opened, 8)  # of which there is none


def release(opened: Opened, graph: int) -> None:
    provider = next(o for o in gc.get_objects() if isinstance(o, CapturingProvider) and o.state is opened.state)
    call = getattr(opened.session, "release_captured_graph", provider.release_captured_graph)  # since 1.32
    call(graph)


def test_an_output_of_another_size_than_its_value_is_refused(rng: np.random.Generator, calls: Counter[str]) -> None:
    """Its size follows from the content of an input, which a replay does not show to onnxruntime."""
    net = make_model([node("Expand", "x s", "e"), node("Add", "e e", "y")], [info("x", [1]), info("s", [1], 7)], ["y"])
    opened = captured(net)
    x, shape = device_value(opened, np.float32([1.5])), device_value(opened, np.array([3]))
    y, binding = device_value(opened, np.zeros(3, "f")), opened.session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_input("s", shape)
    binding.bind_ortvalue_output("y", y)
    for value in (1.5, 2.5, 4.5):
        x.update_inplace(np.float32([value]))
        opened.session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y.numpy(), [2 * value] * 3)
    shape.update_inplace(np.array([5]))
    with pytest.raises(Exception, match=r"graph 0 can't be replayed: .* an output has other sizes"):
        opened.session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.numpy(), [9] * 3)
    shape.update_inplace(np.array([3]))
    opened.session.run_with_iobinding(binding)
    assert calls == Counter(executed=2, replays=3)


# ---- sessions


def test_a_node_of_the_cpu_is_refused_by_name(rng: np.random.Generator) -> None:
    net = make_model(
        [node("MatMul", "x W", "h", name="first"), island("h", "i"), node("Relu", "i", "y")],
        [info("x", [SIDE, SIDE])],
        ["y"],
        {"W": rng.normal(size=(SIDE, SIDE)).astype("f")},
    )
    with pytest.raises(Exception, match=r"graph_capture=1 needs the whole model on the GPU, but 1 of 3 nodes.*Inverse"):
        open_session(net, graph_capture=1)


def test_an_output_that_no_node_gives_is_refused() -> None:
    net = make_model([node("Relu", "x", "y")], [info("x", [4])], [info("x", [4]), "y"])
    with pytest.raises(Exception, match="no node gives the output 'x'"):
        open_session(net, graph_capture=1)


@pytest.mark.parametrize("placement", ["cpu", "auto"])
def test_a_model_that_the_cpu_has_goes_on_without(placement: str, model: bytes, rng: np.random.Generator) -> None:
    """placement=auto leaves it to the CPU on a software adapter, and says so."""
    opened = open_session(model, graph_capture=1, placement=placement)
    for _ in range(2):
        x = rng.normal(size=(4, SIDE)).astype("f")
        assert_close(opened.run(x=x), reference(model, x=x))
    said = [event.message for event in opened.state.events if event.where == "graph capture"]
    assert said == ["graph_capture=1 has no effect: no node is on the GPU"] * (placement == "auto")


def test_a_session_without_a_gpu_goes_on_without(
    model: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factory, "open_backend", raises(AdapterError("no GPU")))
    opened = open_session(model, graph_capture=1)
    x = rng.normal(size=(4, SIDE)).astype("f")
    assert_close(opened.run(x=x), reference(model, x=x))
    assert any("no effect: no GPU is used in this process" in event.message for event in opened.state.events)


def test_our_own_sessions_need_none(model: bytes, rng: np.random.Generator, calls: Counter[str]) -> None:
    """They may be bound anew at any time: their repeated runs bypass onnxruntime, and read each value where it is."""
    session = ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu", "graph_capture": "1"})
    bound = Bound(Opened(session, session.state))
    for rows in (4, 4, 4, 4, 6, 6):
        if rows != bound.values["x"].shape()[0]:
            bound.bind(rows)
        bound.check(model, rng)
    assert any("bypass onnxruntime without it" in event.message for event in session.state.events)
    assert not calls


def test_threads_take_turns(model: bytes, calls: Counter[str]) -> None:
    """Each with values of its own; onnxruntime makes one run at a time."""
    opened, times = captured(model), 12

    def work(k: int) -> None:
        bound, rng = Bound(opened, 3 + k % 2, k), np.random.default_rng(k)
        for _ in range(times):
            bound.check(model, rng)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert calls == Counter(executed=4, replays=4 * (times - 1))


def test_a_session_can_be_dropped_and_its_memory_with_it(model: bytes, rng: np.random.Generator) -> None:
    gc.collect()
    before = plugin.live_tables()
    bound = Bound(captured(model))
    for _ in range(2):
        bound.check(model, rng)
    assert plugin.live_tables()["Provider"] == before["Provider"] + 1
    del bound
    gc.collect()
    assert plugin.live_tables() == before


# ---- the device


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize(
    ("at", "executed", "replays"), [(1, 6, 0), (3, 4, 2)], ids=["while it is captured", "in a replay"]
)
def test_a_lost_device_is_answered_by_the_cpu_once(
    at: int, executed: int, replays: int, model: bytes, rng: np.random.Generator, calls: Counter[str]
) -> None:
    """Also where onnxruntime asks about the run afterwards: no is a demand to make it again."""
    bound = Bound(opened := captured(model, strict=0, faults=f"lost@{at};seed=3"))
    partition = opened.state.partitions[0]
    for k in range(6):
        bound.check(model, rng)
        assert partition.runs == k + 1
    assert partition.fallbacks == 7 - at
    assert calls == Counter(executed=executed, replays=replays)


def test_a_replay_is_waited_for_by_who_asks(model: bytes, rng: np.random.Generator) -> None:
    bound = Bound(opened := captured(model))
    for _ in range(2):
        bound.check(model, rng)
    opened.session.run_with_iobinding(bound.binding)
    gpu = opened.state.gpu
    assert gpu is not None
    bound.binding.synchronize_outputs()
    assert gpu.finished(None)


def test_replays_are_recorded_ahead(model: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the host waits for what the one before gives."""
    bound, encoded = Bound(captured(model)), Counter[str]()
    for _ in range(4):
        bound.check(model, rng)
    encode = recording.encode

    def counted(*arguments: Any) -> Any:
        encoded["in a replay" if replaying else "while waiting"] += 1
        return encode(*arguments)

    replaying, replay = False, CapturingProvider.replay_graph

    def noted(self: CapturingProvider, number: int) -> None:
        nonlocal replaying
        replaying = True
        replay(self, number)
        replaying = False

    monkeypatch.setattr(recording, "encode", counted)
    monkeypatch.setattr(CapturingProvider, "replay_graph", noted)
    for _ in range(4):
        bound.check(model, rng)
    assert encoded == Counter({"while waiting": 4})


def test_a_process_may_end_with_a_recording(python: Callable[..., Any], tmp_path: Path) -> None:
    """At its end the interpreter drops modules in the order in which they came, the library's before what holds a
    session's graphs. A cache of its own: what is compiled in this process takes its time to go."""
    done = python(
        """
        from tests.plugin.test_graph_capture import Bound, captured
        plugin.register()
        nodes = [node("Relu", "x", "y"), node("Sub", "y c", "z")]
        net = make_model(nodes, [info("x", ["N", 8])], ["y", "z"], {"c": np.float32(0.1)})
        bound, rng = Bound(captured(net)), np.random.default_rng(0)
        for _ in range(6):
            bound.check(net, rng)
        """,
        ORT_GPU_EP_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
