"""Decoders as onnxruntime-genai's builder writes them: one partition, ONNX Runtime's tokens, caches of every kind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from models.language import language_model
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.runtime.plans import Plans
from ort_gpu_ep.runtime.program import Program

PROMPT, STEPS = 9, 6


def session(model: Any, placement: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if placement == "plain":
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return InferenceSession(
        model.SerializeToString(), options, provider_options={"placement": placement, "strict": "1"}
    )


def empty_caches(opened: Any, rows: int, head: int = 0) -> dict[str, np.ndarray]:
    kind = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    return {i.name: np.zeros((1, i.shape[1], rows, head or i.shape[3]), kind[i.type]) for i in opened.get_inputs()[2:]}


def generated(
    opened: Any, prompt: np.ndarray, rows: int = 0, head: int = 0, steps: int = STEPS
) -> tuple[list[int], list[np.ndarray]]:
    """Greedy tokens and their logits, by `run`. rows: of a cache that does not grow; 0: it grows. head: where the model
    leaves it open."""
    caches, tokens, total, found, logits = empty_caches(opened, rows, head), prompt[None], len(prompt), [], []
    for _ in range(steps):
        feeds = {"input_ids": tokens, "attention_mask": np.ones((1, total), np.int64), **caches}
        given = dict(zip((o.name for o in opened.get_outputs()), opened.run(None, feeds), strict=True))
        caches = {name: given[name.replace("past_key_values", "present")] for name in caches}
        logits.append(given["logits"][0, -1].astype(np.float64))
        found.append(int(logits[-1].argmax()))
        tokens, total = np.array([[found[-1]]]), total + 1
    return found, logits


def prompt_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 512, PROMPT)


@pytest.mark.parametrize("packed", [True, False], ids=["qkv", "q-k-v"])
@pytest.mark.parametrize("rows", [0, 40], ids=["growing", "static"])
def test_one_partition_and_the_tokens_of_the_cpu(packed: bool, rows: int) -> None:
    model = language_model(packed=packed)
    ours, plain = session(model, "gpu"), session(model, "plain")
    assert len(ours.state.partitions) == 1, str(ours.explain())
    (tokens, logits), (wanted, theirs) = (generated(s, prompt_of(1), rows) for s in (ours, plain))
    assert tokens == wanted
    np.testing.assert_allclose(logits, theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("packed", [True, False], ids=["qkv", "q-k-v"])
def test_caches_that_leave_the_size_of_a_head_open(packed: bool) -> None:
    """onnxruntime-genai's builder writes them so: the queries' width tells which size it is."""
    model = language_model(packed=packed, head=48, heads=4, groups=1)
    plain = session(model, "plain")
    wanted, theirs = generated(plain, prompt_of(1))
    for value in (*model.graph.input[2:], *model.graph.output[1:]):
        value.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    ours = session(model, "gpu")
    assert len(ours.state.partitions) == 1, str(ours.explain())
    tokens, logits = generated(ours, prompt_of(1), head=48)
    assert tokens == wanted
    np.testing.assert_allclose(logits, theirs, rtol=2e-4, atol=2e-4)


def test_normalized_queries_and_keys() -> None:
    """ONNX Runtime's CPU raises there: each step is compared with the whole sequence as a prompt."""
    ours = session(language_model(norms=True), "gpu")
    tokens, logits = generated(ours, prompt_of(2))
    for k in (2, STEPS - 1):
        _, whole = generated(ours, np.array([*prompt_of(2), *tokens[:k]]))
        np.testing.assert_allclose(logits[k], whole[0], rtol=2e-4, atol=2e-4)


def test_float16_is_one_partition_near_float32() -> None:
    half, full = (session(language_model(dtype=d), "gpu") for d in ("float16", "float32"))  # type: ignore[arg-type]
    assert len(half.state.partitions) == 1
    (_, logits), (_, wanted) = (generated(s, prompt_of(3)) for s in (half, full))
    assert np.abs(logits[0] - wanted[0]).max() < 0.02 * np.abs(wanted[0]).max()


def shared_caches(opened: Any, rows: int) -> dict[str, Any]:
    return {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(cache, "gpu")
        for name, cache in empty_caches(opened, rows).items()
    }


def bound_step(opened: Any, caches: dict[str, Any], tokens: np.ndarray, total: int) -> np.ndarray:
    """One step whose caches are past and present at once."""
    return bound_step_with(opened, caches, tokens, np.ones((1, total), np.int64))


def bound_step_with(opened: Any, caches: dict[str, Any], tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    binding = opened.io_binding()
    binding.bind_cpu_input("input_ids", tokens)
    binding.bind_cpu_input("attention_mask", mask)
    for name, cache in caches.items():
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
    binding.bind_output("logits", "cpu")
    opened.run_with_iobinding(binding)
    return np.asarray(binding.get_outputs()[-1].numpy())


def test_one_buffer_is_past_and_present() -> None:
    model = language_model()
    ours, plain = session(model, "gpu"), session(model, "plain")
    wanted, theirs = generated(plain, prompt_of(4))
    caches, tokens, total = shared_caches(ours, 40), prompt_of(4)[None], PROMPT
    for k in range(STEPS):
        logits = bound_step(ours, caches, tokens, total)[0, -1]
        np.testing.assert_allclose(logits, theirs[k], rtol=2e-4, atol=2e-4)
        tokens, total = np.array([[wanted[k]]]), total + 1


def test_the_numbers_of_the_next_step_are_found_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the host waits for the step before: its mask is longer by as much again."""
    ours = session(language_model(layers=1), "gpu")
    caches, asked, within = shared_caches(ours, 40), list[bool](), list[bool]()
    bound_step(ours, caches, prompt_of(5)[None], PROMPT)
    real_fill, real_prepared = Plans.fill, Program._prepared

    def fill(plans: Plans, *given: Any) -> Any:
        asked.append(bool(within))
        return real_fill(plans, *given)

    def prepared(program: Program, *given: Any) -> Any:
        within.append(True)
        try:
            return real_prepared(program, *given)
        finally:
            within.clear()

    monkeypatch.setattr(Plans, "fill", fill)
    monkeypatch.setattr(Program, "_prepared", prepared)
    for k in range(8):
        bound_step(ours, caches, np.array([[k]]), PROMPT + 1 + k)
    assert asked[0]  # of the first step behind the prompt nobody could know
    assert not any(asked[3:])
    assert len(asked) >= 7


def test_a_shared_cache_is_changed_in_place() -> None:
    """Nothing is copied, and a length that is out of range leaves it as it is."""
    ours = session(language_model(layers=1), "gpu")
    caches, tokens = shared_caches(ours, 40), prompt_of(5)[None]
    bound_step(ours, caches, tokens, PROMPT)
    (partition,) = ours.state.partitions
    storages = [memory.read(partition.program.gpu, c.data_ptr(), c.tensor_size_in_bytes())[0] for c in caches.values()]
    memory.release(storages)
    before = [np.array(c.numpy()) for c in caches.values()]
    bound_step(ours, caches, tokens[:, :1], PROMPT + 1)
    after = [np.array(c.numpy()) for c in caches.values()]
    for cache, storage, old, new in zip(caches.values(), storages, before, after, strict=True):
        assert memory.read(partition.program.gpu, cache.data_ptr(), cache.tensor_size_in_bytes())[0] is storage
        memory.release([storage])
        changed = np.flatnonzero((old != new).any(axis=(0, 1, 3)))
        assert changed.tolist() == [PROMPT]
    with pytest.raises(Exception, match=r"out of range|seqlens_k"):  # 41 tokens in 40 rows
        bound_step_with(ours, caches, tokens[:, :1], np.ones((1, 40), np.int64) + np.eye(1, 40, dtype=np.int64))
    for storage, new in zip(storages, after, strict=True):
        left = np.empty_like(new)  # past the note of the failed run, which reading the value raises
        partition.program.gpu.download_all([((storage.buffer, 0, left.nbytes), left.ctypes.data)], ())
        np.testing.assert_array_equal(left, new)


def test_caches_that_move_are_found_again() -> None:
    """A run knows where the values of the runs before were: others may have come to the same addresses meanwhile, and
    threads have their own."""
    model = language_model(layers=1)
    ours, plain = session(model, "gpu"), session(model, "plain")
    inputs = ours.get_inputs()[2:]

    def feeds(seed: int, device: str) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        caches = {i.name: rng.standard_normal((1, i.shape[1], 24, i.shape[3]), np.float32) for i in inputs}
        tokens = {"input_ids": rng.integers(0, 512, (1, 1)), "attention_mask": np.ones((1, 9), np.int64)}
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        return {**{n: value(a) for n, a in tokens.items()}, **{n: value(a, device) for n, a in caches.items()}}

    def logits(of: Any, given: dict[str, Any]) -> Any:
        return of.run_with_ort_values(["logits"], given)[0].numpy()

    wanted = [logits(plain, feeds(seed, "cpu")) for seed in range(6)]

    def runs(first: int) -> None:
        for seed in (first, first + 2, first + 4, first):
            given = feeds(seed, "gpu")  # those before are freed: these get their places
            for _ in range(4):
                np.testing.assert_allclose(logits(ours, given), wanted[seed], rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(runs, range(2)))
    assert ours.stats()["fallbacks"] == 0
    given = feeds(0, "gpu")
    for _ in range(3):
        logits(ours, given)
    known = [value.piece for value in ours.state.partitions[0].known.inputs.values()]
    assert len(known) >= len(inputs)
    assert not any(piece.gone for piece in known)
    del given
    assert sum(piece.gone for piece in known) >= len(inputs)
