"""A decoder's step by IO binding with nothing from the host between two tokens, and values that are read later."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime import OrtValue

import ort_gpu_ep
from models.language import language_model
from ort_gpu_ep.device import gpu as gpu_module
from ort_gpu_ep.errors import ConfigError, DeviceError, DeviceHangError, IndexOutOfRangeError, ModelError
from ort_gpu_ep.plugin.state import COPIES
from tests.session.test_language_models import generated, prompt_of, session

LENGTH, TOKENS = 64, 12


@pytest.fixture(scope="module")
def wanted() -> tuple[list[int], list[np.ndarray]]:
    return generated(session(language_model(), "plain"), prompt_of(1), steps=TOKENS)


def opened(model: Any = None, **options: Any) -> Any:
    candidates = options.pop("candidates", 0)
    return ort_gpu_ep.decoding_session(
        language_model() if model is None else model,
        max_length=LENGTH,
        candidates=candidates,
        provider_options=options or {"strict": 1},
    )


class Loop:
    """What a program does: two places for a token and a count, of which each step reads one and writes the other one."""

    def __init__(self, session: Any, device: str = "gpu", **outputs: Any) -> None:
        self.session, self.device, self.outputs = session, device, outputs
        self.tokens, self.lengths = ([self.value(np.ones((1, 1), np.int64)) for _ in range(2)] for _ in range(2))
        pasts = session.get_inputs()[2:]
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        self.caches = {i.name: self.value(np.zeros((1, *i.shape[1:]), kinds[i.type])) for i in pasts}
        self.bindings = [self.binding(place) for place in range(2)]
        self.place = 0

    def value(self, array: np.ndarray) -> Any:
        return OrtValue.ortvalue_from_numpy(array, self.device)

    def binding(self, place: int, ids: np.ndarray | None = None) -> Any:
        binding = self.session.io_binding()
        if ids is None:
            binding.bind_ortvalue_input("input_ids", self.tokens[place])
        else:
            binding.bind_cpu_input("input_ids", ids)
        binding.bind_ortvalue_input("generation.length", self.lengths[place])
        for name, cache in self.caches.items():
            binding.bind_ortvalue_input(name, cache)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
        binding.bind_ortvalue_output("generation.next", self.tokens[1 - place])
        binding.bind_ortvalue_output("generation.next_length", self.lengths[1 - place])
        for name, value in self.outputs.items():
            binding.bind_ortvalue_output(f"generation.{name}", value)
        return binding

    def read(self, prompt: np.ndarray) -> None:
        self.lengths[0].update_inplace(np.array([[len(prompt)]]))
        self.session.run_with_iobinding(self.binding(0, prompt[None]))
        self.place = 1

    def step(self) -> None:
        self.session.run_with_iobinding(self.bindings[self.place])
        self.place = 1 - self.place

    @property
    def token(self) -> Any:
        """Of the last step."""
        return self.tokens[self.place]

    def generate(self, prompt: np.ndarray, count: int) -> list[int]:
        """Each token is read when the next step has been submitted."""
        self.read(prompt)
        waiting, found = deque([ort_gpu_ep.read_later(self.token)]), list[int]()
        for _ in range(count - 1):
            self.step()
            waiting.append(ort_gpu_ep.read_later(self.token))
            found.append(int(waiting.popleft()()[0].item()))
        return [*found, int(waiting.popleft()()[0].item())]


def test_the_tokens_of_the_cpu_read_a_step_behind(wanted: tuple[list[int], list[np.ndarray]]) -> None:
    loop = Loop(opened())
    for _ in range(2):
        assert loop.generate(prompt_of(1), TOKENS) == wanted[0]
    before = COPIES.as_dict()
    loop.generate(prompt_of(1), TOKENS)
    crossed = {kind: count - before[kind] for kind, count in COPIES.as_dict().items()}
    assert (crossed["host_to_device"], crossed["device_to_host"], crossed["device_to_host_nbytes"]) == (2, 12, 12 * 8)
    assert loop.session.stats()["fallbacks"] == 0


def test_tokens_on_onnxruntimes_cpu(wanted: tuple[list[int], list[np.ndarray]]) -> None:
    """Values in host memory are read at once: the next step writes there."""
    assert Loop(opened(placement="cpu"), "cpu").generate(prompt_of(1), TOKENS) == wanted[0]


def test_a_file_whose_weights_lie_beside_it(tmp_path: Path, wanted: tuple[list[int], list[np.ndarray]]) -> None:
    onnx.save(language_model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=64)
    assert Loop(opened(tmp_path / "m.onnx")).generate(prompt_of(1), 4) == wanted[0][:4]


def test_a_step_does_not_wait_and_its_token_not_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(opened())
    expected = loop.generate(prompt_of(1), TOKENS)
    gpu, awaited = loop.session.state.gpu, list[int]()
    wait = gpu_module.native.wait
    monkeypatch.setattr(gpu_module.native, "wait", lambda g, index, a: awaited.append(index) or wait(g, index, a))
    loop.read(prompt_of(1))
    first = ort_gpu_ep.read_later(loop.token)
    submitted = gpu.stats.submits
    loop.step()
    second = ort_gpu_ep.read_later(loop.token)
    assert not awaited
    assert gpu.stats.submits > submitted
    assert [first()[0].item()] == expected[:1]
    (index,) = awaited
    assert [second()[0].item()] == expected[1:2]
    assert awaited[1] > index


def test_steps_that_nobody_reads_are_submitted_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch, wanted: tuple[list[int], list[np.ndarray]]
) -> None:
    """The GPU begins with them before their token is read; the host stays so many submissions ahead."""
    loop = Loop(opened())
    loop.generate(prompt_of(1), 6)  # bindings go past onnxruntime from now on
    monkeypatch.setattr(gpu_module, "MAX_IN_FLIGHT", 2)
    gpu, most = loop.session.state.gpu, 0
    loop.read(prompt_of(1))
    ort_gpu_ep.read_later(loop.token)()
    submitted = gpu.stats.submits
    for _ in range(TOKENS - 1):
        loop.step()
        most = max(most, len(gpu.ahead))
    assert gpu.stats.submits - submitted >= (TOKENS - 1) // 2
    assert 0 < most <= 2
    assert loop.token.numpy().item() == wanted[0][-1]
    assert not gpu.ahead


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """The software adapter passes for one that computes beside the host."""
    monkeypatch.setattr(gpu_module.AdapterInfo, "is_software", property(lambda info: False))


@pytest.mark.usefixtures("hardware")
def test_a_gpu_with_nothing_to_do_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(opened())
    loop.generate(prompt_of(1), 6)
    gpu = loop.session.state.gpu
    gpu.last_wait_s, submitted = 0.0, gpu.stats.submits
    loop.step()
    assert gpu.stats.submits == submitted  # a short one waits for others
    ort_gpu_ep.read_later(loop.token)()
    gpu.last_wait_s, submitted = 1.0, gpu.stats.submits
    loop.step()
    assert gpu.stats.submits == submitted + 1
    monkeypatch.setattr(gpu, "finished", lambda arrival: False)
    loop.step()
    assert gpu.stats.submits == submitted + 1
    loop.step()
    assert gpu.stats.submits == submitted + 2  # both


@pytest.mark.usefixtures("hardware")
@pytest.mark.parametrize("last_s", [0.0, 1.0])
def test_a_long_run_begins_before_its_readback_is_recorded(last_s: float) -> None:
    loop = Loop(opened())
    for binding in loop.bindings:
        binding.bind_output("generation.logits", "cpu")
    loop.generate(prompt_of(1), 6)
    gpu = loop.session.state.gpu
    gpu.last_wait_s, submitted = last_s, gpu.stats.submits
    loop.step()
    assert gpu.stats.submits - submitted == 1 + (last_s > 0)


def test_one_value_as_the_token_that_is_read_and_written(wanted: tuple[list[int], list[np.ndarray]]) -> None:
    """Each step gets new memory for it: the CPU could not repeat one that has written over what it reads."""
    loop = Loop(opened())
    loop.read(prompt_of(1))
    found = [loop.token.numpy().item()]
    for binding in loop.bindings:
        binding.bind_ortvalue_input("input_ids", loop.tokens[1])
        binding.bind_ortvalue_output("generation.next", loop.tokens[1])
    for _ in range(TOKENS - 1):
        loop.step()
        found.append(loop.tokens[1].numpy().item())
    assert found == wanted[0]


def test_candidates_are_the_largest_logits(wanted: tuple[list[int], list[np.ndarray]]) -> None:
    device = OrtValue.ortvalue_from_shape_and_type
    tokens, logits = device([1, 5], np.int64, "gpu"), device([1, 5], np.float32, "gpu")
    loop = Loop(opened(candidates=5), candidates=tokens, candidate_logits=logits)
    loop.read(prompt_of(1))
    for k in range(6):
        found, theirs = ort_gpu_ep.read_later(tokens, logits)()
        order = np.argsort(-wanted[1][k])[:5]
        assert found[0].tolist() == order.tolist()
        np.testing.assert_allclose(theirs[0], wanted[1][k][order], rtol=2e-4, atol=2e-4)
        loop.step()


def test_all_logits_can_be_bound(wanted: tuple[list[int], list[np.ndarray]]) -> None:
    logits = OrtValue.ortvalue_from_shape_and_type([1, 1, 512], np.float32, "gpu")
    loop = Loop(opened(), logits=logits)
    loop.read(prompt_of(1))
    for k in range(4):
        np.testing.assert_allclose(logits.numpy()[0, 0], wanted[1][k], rtol=2e-4, atol=2e-4)
        loop.step()


def test_logits_that_leave_no_token(wanted: tuple[list[int], list[np.ndarray]]) -> None:
    loop = Loop(opened())
    assert loop.generate(prompt_of(1), 3) == wanted[0][:3]
    name = next(iter(loop.caches))
    loop.caches[name].update_inplace(np.full(loop.caches[name].shape(), np.nan, np.float32))
    loop.step()
    assert ort_gpu_ep.read_later(loop.token)()[0].item() == -1


def test_a_token_that_the_vocabulary_lacks_is_told_with_the_next_one() -> None:
    loop = Loop(opened())
    loop.generate(prompt_of(1), 4)
    loop.token.update_inplace(np.array([[512]]))
    loop.step()
    later = ort_gpu_ep.read_later(loop.token)
    with pytest.raises(IndexOutOfRangeError):
        later()


def test_values_of_several_kinds_and_none() -> None:
    arrays = [np.arange(6, dtype=np.int32).reshape(2, 3), np.array(True), np.float16([1.5, -2])]
    ort_gpu_ep.register()
    values = [OrtValue.ortvalue_from_numpy(array, "gpu") for array in arrays]
    for found, array in zip(ort_gpu_ep.read_later(*values)(), arrays, strict=True):
        assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    on_host = OrtValue.ortvalue_from_numpy(arrays[0].copy())
    later = ort_gpu_ep.read_later(on_host)
    on_host.update_inplace(arrays[0] + 1)
    assert later()[0].tolist() == arrays[0].tolist()
    assert ort_gpu_ep.read_later()() == []


def test_a_lost_device_is_told_by_what_is_read() -> None:
    loop = Loop(opened(faults="lost@9;seed=1", strict=1))
    with pytest.raises(DeviceError):
        loop.generate(prompt_of(1), TOKENS)


def test_steps_that_nobody_reads_end_where_the_gpu_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "MAX_IN_FLIGHT", 2)
    loop = Loop(opened(faults="hang@12;seed=1", strict=1, hang_timeout_ms=300))
    loop.generate(prompt_of(1), 6)

    def steps() -> None:
        for _ in range(30):
            loop.step()

    with pytest.raises(DeviceHangError):
        steps()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"candidates": -1}, ConfigError, "candidates: got -1"),
        ({"candidates": 513}, ConfigError, "at most 512, the vocabulary"),
        ({"max_length": 1 << 20}, ConfigError, "max_length"),
    ],
    ids=str,
)
def test_options_that_are_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ort_gpu_ep.decoding_session(language_model(), **options)


def test_other_models_are_refused() -> None:
    model = language_model()
    model.graph.input[0].name = "tokens"
    with pytest.raises(ModelError, match="input_ids"):
        ort_gpu_ep.decoding_session(model)
