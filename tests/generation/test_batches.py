"""Several prompts at once: each row has the tokens that its prompt alone has, whoever joins and leaves beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from models.language import language_model
from ort_gpu_ep.errors import ConfigError, DeviceError, InputError, ModelError, OutOfDeviceMemoryError
from ort_gpu_ep.generation import Batch, Generator
from ort_gpu_ep.plugin import Turns
from ort_gpu_ep.plugin.state import COPIES
from ort_gpu_ep.runtime.program import Program
from tests.decoder import decoder
from tests.generation.test_threads_and_limits import SIDES, in_turns, small
from tests.session.test_language_models import generated, session

LENGTHS = (3, 9, 1, 17, 5)
GREEDY: dict[str, Any] = {"max_new_tokens": 7}
DRAWN: list[dict[str, Any]] = [
    {"temperature": 1.5, "top_k": 12, "seed": 4},
    {"temperature": 2.5, "seed": 5},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 40, "seed": 6},
    {},
    {"temperature": 1.0, "top_k": 1},
]


def prompts_of(seed: int, lengths: tuple[int, ...] = LENGTHS, vocabulary: int = 64) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocabulary, length) for length in lengths]


def opened(options: dict[str, Any] | None = None, rows: int = 3, model: onnx.ModelProto | None = None) -> Generator:
    return Generator(
        model or small(), max_length=40, provider_options=SIDES[0] if options is None else options, rows=rows
    )


def alone(prompt: np.ndarray, asked: dict[str, Any]) -> list[int]:
    made = Generator(small(), max_length=40, provider_options={"placement": "cpu"})
    return list(made.generate(prompt, **asked))


def answers(batch: Batch, requests: list[tuple[np.ndarray, dict[str, Any]]]) -> list[list[int]]:
    """They join as soon as a row is free."""
    tokens, rows, waiting = [list[int]() for _ in requests], dict[int, int](), list(range(len(requests)))
    while waiting or batch.rows:
        while waiting and batch.free:
            k = waiting.pop(0)
            rows[batch.add(requests[k][0], **requests[k][1])] = k
        for row, token in batch.step().items():
            tokens[rows[row]].append(token)
    return tokens


# ---- the same tokens


@pytest.mark.parametrize("options", SIDES, ids=str)
def test_rows_have_the_tokens_of_each_prompt_alone(options: dict[str, Any]) -> None:
    """Greedy and drawn ones beside each other, of unequal lengths; more prompts than rows."""
    made = opened(options)
    requests = [
        (prompt, {"max_new_tokens": 4 + 3 * k, **asked})
        for k, (prompt, asked) in enumerate(zip(prompts_of(1), DRAWN, strict=True))
    ]
    wanted = [alone(*request) for request in requests]
    for rows in (1, 2, 3):
        with made.batch(rows) as batch:
            assert answers(batch, requests) == wanted
            assert (batch.rows, batch.free) == ((), rows)
    assert list(made.generate(*requests[0][:1], **requests[0][1])) == wanted[0]
    assert made.session.stats()["fallbacks"] == 0


@pytest.mark.parametrize("changed", [{}, {"packed": False, "norms": False}, {"dtype": "float16"}, {"accuracy": 4}])
def test_tokens_of_onnxruntime(changed: dict[str, Any]) -> None:
    """Six rows take the kernels of many vectors, three those of few."""
    model = language_model(**changed)
    plain = session(model, "plain")
    prompts = prompts_of(2, (3, 9, 1, 17, 5, 30), 512)
    wanted = [generated(plain, prompt)[0] for prompt in prompts]
    for rows in (3, 6):
        made = Generator(model, max_length=64, provider_options={"strict": 1}, rows=rows)
        assert made.generate_batch(prompts, max_new_tokens=len(wanted[0])) == wanted


def test_normalized_queries_windows_and_positions() -> None:
    model = language_model(layers=1, norms=True, packed=False, seed=4)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            inputs = [*node.input, *[""] * (16 - len(node.input))]
            inputs[9] = "position_ids"
            del node.input[:]
            node.input.extend(inputs)
            next(a for a in node.attribute if a.name == "local_window_size").i = 6
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, ["batch", "sequence"])
    )
    prompts = prompts_of(3, (3, 14, 7), 512)
    made = Generator(model, max_length=40, provider_options={"strict": 1})
    wanted = [list(made.generate(prompt, max_new_tokens=9)) for prompt in prompts]
    rows = Generator(model, max_length=40, provider_options={"strict": 1}, rows=3)
    assert rows.generate_batch(prompts, max_new_tokens=9) == wanted


@pytest.mark.parametrize("seed", range(3))
def test_rows_join_and_leave_between_steps(seed: int) -> None:
    """In any order: what a row has so far is what its prompt alone begins with."""
    rng, made = np.random.default_rng(seed), opened(rows=4)
    prompts = prompts_of(seed + 10, tuple(rng.integers(1, 20, 12)))
    asked = [{"max_new_tokens": int(n), **DRAWN[k % 5]} for k, n in enumerate(rng.integers(1, 16, 12))]
    wanted = [alone(prompt, options) for prompt, options in zip(prompts, asked, strict=True)]
    batch, rows, tokens, removed = made.batch(), dict[int, int](), [list[int]() for _ in prompts], set[int]()
    following = iter(range(len(prompts)))
    for _ in range(200):
        action = rng.integers(0, 4)
        if action == 0 and batch.free and (k := next(following, None)) is not None:
            rows[batch.add(prompts[k], **asked[k])] = k
        elif action == 1 and len(batch.rows) > 2 and rng.random() < 0.3:
            row = batch.rows[int(rng.integers(len(batch.rows)))]
            removed.add(rows[row])
            batch.remove(row)
        elif action > 1:
            told = batch.step()
            for row, token in told.items():
                tokens[rows[row]].append(token)
    assert len(rows) == len(prompts)
    assert removed
    for k, found in enumerate(tokens):
        assert found == wanted[k] or (k in removed and found == wanted[k][: len(found)]), k


def test_a_row_ends_with_its_own_last_token() -> None:
    made, prompts = opened(), prompts_of(1)
    wanted = [alone(prompt, {}) for prompt in prompts[:3]]
    assert [len(tokens) for tokens in wanted] == [40 - len(prompt) for prompt in prompts[:3]]  # up to the last place
    place = next(k for k, token in enumerate(wanted[1]) if token not in wanted[1][:k] and k > 2)
    requests = [(prompts[0], {}), (prompts[1], {"stop": [wanted[1][place]]}), (prompts[2], {"max_new_tokens": 1})]
    assert answers(made.batch(), requests) == [wanted[0], wanted[1][: place + 1], wanted[2][:1]]


def test_all_prompts_by_one_call() -> None:
    made, prompts, told = opened(rows=2), prompts_of(4), list[tuple[int, int]]()
    asked = {"max_new_tokens": 6, "temperature": 2.0, "top_k": 9}
    wanted = [alone(prompt, {**asked, "seed": 3 + k}) for k, prompt in enumerate(prompts)]
    found = made.generate_batch(prompts, seed=3, on_token=lambda prompt, token: told.append((prompt, token)), **asked)
    assert found == wanted
    assert [[token for k, token in told if k == prompt] for prompt in range(len(prompts))] == wanted
    assert told[0][0] == 0
    assert told[1][0] == 1  # both rows in one step
    assert made.generate_batch([]) == []
    assert made.generate_batch(prompts[:2], max_new_tokens=0) == [[], []]
    assert made.generate_batch(np.stack([prompts[0]] * 2), **GREEDY) == [alone(prompts[0], GREEDY)] * 2


# ---- memory, compiling, what crosses


@pytest.mark.parametrize("rows", [3, 6])
def test_nothing_compiles_and_memory_is_flat_while_rows_come_and_go(rows: int) -> None:
    made = opened(rows=rows)
    batch, gpu, held = made.batch(), made.session.state.gpu, made.session.state.allowance
    lengths = (2, 11, 1, 19, 6)
    requests = [(prompt, {"max_new_tokens": 5, **DRAWN[k % 2]}) for k, prompt in enumerate(prompts_of(5, lengths))]
    answers(batch, [*requests, *requests])
    compiled, nbytes = gpu.compiled, held.held_nbytes
    for seed in range(6, 12):
        answers(batch, [(prompt, requests[k][1]) for k, prompt in enumerate(prompts_of(seed, lengths))])
    assert gpu.compiled == compiled
    assert held.held_nbytes <= nbytes
    batch.close()
    assert held.held_nbytes < nbytes


def test_a_step_brings_lengths_and_takes_tokens() -> None:
    made = opened(rows=3)
    batch = made.batch()
    for prompt in prompts_of(1)[:2]:
        batch.add(prompt)
    for _ in range(4):
        batch.step()
    before = COPIES.as_dict()
    for _ in range(10):
        assert len(batch.step()) == 2
    crossed = {kind: count - before[kind] for kind, count in COPIES.as_dict().items()}
    assert (crossed["host_to_device"], crossed["host_to_device_nbytes"]) == (10, 10 * 3 * 8)
    assert (crossed["device_to_host"], crossed["device_to_host_nbytes"]) == (10, 10 * 3 * 8)
    assert crossed["device_to_device"] == 0


# ---- bad input


def test_bad_input_and_the_other_rows_go_on() -> None:
    made, (first, second, *_) = opened(rows=2), prompts_of(1)
    wanted = [alone(prompt, GREEDY) for prompt in (first, second)]
    batch = made.batch()
    rows, tokens = [batch.add(first, **GREEDY)], [list[int](), list[int]()]

    def step() -> None:
        for row, token in batch.step().items():
            tokens[rows.index(row)].append(token)

    step()
    for ids in ([], np.arange(40), [0.5], [[1], [2]], [[1], [2, 3]]):
        with pytest.raises(InputError, match="generate: "):
            batch.add(ids)
    for asked in ({"max_new_tokens": 0}, {"max_new_tokens": -1}, {"temperature": -1}, {"top_p": 0}):
        with pytest.raises(ConfigError, match="generate: "):
            batch.add(second, **asked)
    for row in (5, -1, "a"):
        with pytest.raises(InputError, match=r"row: got .*, expected one of \[0\]"):
            batch.remove(row)
    step()
    with pytest.raises(Exception, match="out of range"):
        batch.add([10**6])
    step()
    rows.append(batch.add(second, **GREEDY))
    with pytest.raises(InputError, match="all 2 rows are taken"):
        batch.add(first)
    while batch.rows:
        step()
    assert tokens == wanted
    assert rows == [0, 1]
    assert batch.step() == {}
    batch.close()
    batch.close()
    for call in (lambda: batch.add(first), batch.step, lambda: batch.remove(0)):
        with pytest.raises(InputError, match="it was closed"):
            call()


def test_prompts_are_checked_before_the_first_is_read() -> None:
    made, told = opened(), list[object]()
    for bad in ([], np.arange(40), [1.5]):
        with pytest.raises(InputError, match="generate: "):
            made.generate_batch([[1, 2], bad], on_token=lambda *token: told.append(token))
    with pytest.raises(InputError, match="generate_batch"):
        made.generate([[1, 2], [3]])
    with pytest.raises(InputError, match="generate: ids"):
        made.generate_batch([1, 2])
    assert not told


def test_rows_that_a_generator_cannot_have() -> None:
    made = opened(rows=2)
    for rows in (0, 3, -1):
        with pytest.raises(ConfigError, match=f"rows: got {rows}, expected 1 to 2"):
            made.batch(rows)
    for rows in (0, -2):
        with pytest.raises(ConfigError, match="expected 1 or more"):
            Generator(small(), rows=rows)
    with pytest.raises(ConfigError, match="no lookahead beside several"):
        Generator(small(), rows=2, lookahead=3)
    with pytest.raises(ModelError, match="opened without lookahead"):
        Generator(small(), max_length=16, lookahead=1).batch()
    with pytest.raises(ModelError, match="caches grow"):
        Generator(decoder(), rows=2)
    with pytest.raises(ModelError, match="caches grow"):
        Generator(decoder(), max_length=16).batch()
    fixed = small()
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(ModelError, match="'input_ids' of the model has a batch of 1, expected an open one"):
        Generator(fixed, rows=2)


def test_more_rows_than_memory() -> None:
    made = Generator(
        language_model(width=512, heads=8, groups=8, hidden=64, vocabulary=64, layers=1),
        max_length=1024,
        provider_options={"memory_limit_mb": 60},
        rows=64,
    )
    prompt, held = np.arange(5), made.session.state.allowance
    wanted = list(made.generate(prompt, **GREEDY))
    batch = made.batch(2)
    row = batch.add(prompt, **GREEDY)
    tokens, before = [batch.step()[row]], held.held_nbytes
    with pytest.raises(OutOfDeviceMemoryError, match="64 rows of 1024 tokens take 256 MiB"):
        made.batch()
    assert held.held_nbytes <= before
    while batch.rows:
        tokens.append(batch.step()[row])
    assert tokens == wanted


@pytest.mark.parametrize("options", SIDES[:2], ids=str)
def test_a_row_whose_logits_are_nan_leaves_alone(options: dict[str, Any]) -> None:
    """In the middle of its answer, since a token that it gave has a row of NaN in the table."""
    made, third = Generator(small(), max_length=40, provider_options=SIDES[1]), [5, 9, 2]
    own = list(made.generate(third, **GREEDY))
    at, token, prompts, wanted = next(
        (k, token, prompts, wanted)
        for prompts in map(prompts_of, range(30))
        for wanted in [[list(made.generate(prompt, **GREEDY)) for prompt in prompts[:2]]]
        for k, token in enumerate(wanted[0][:4])
        if token not in [*wanted[0][:k], *prompts[0], *prompts[1], *wanted[1], *third, *own]
    )
    model = small()
    scales = next(t for t in model.graph.initializer if t.name == "embed_tokens.scales")
    array = onnx.numpy_helper.to_array(scales).copy()
    array[token] = np.nan
    scales.CopyFrom(onnx.numpy_helper.from_array(array, scales.name))
    batch = opened(options, model=model).batch()
    rows, tokens, ended = [batch.add(prompt, **GREEDY) for prompt in prompts[:2]], dict[int, list[int]](), list[str]()
    while batch.rows:
        try:
            for row, token in batch.step().items():
                tokens.setdefault(row, []).append(token)
        except InputError as error:
            ended.append(str(error))
            assert batch.rows == (rows[1],)
    (message,) = ended
    assert f"no token can be chosen behind {len(prompts[0]) + at + 1} tokens" in message
    assert tokens == {rows[0]: wanted[0][: at + 1], rows[1]: wanted[1]}
    row = batch.add(third, **GREEDY)  # in the place of the row that had NaN
    assert [batch.step()[row] for _ in range(7)] == own


# ---- failures, threads


@pytest.mark.parametrize("fails", [0, 2, 4, 9])
def test_the_cpu_goes_on_where_the_gpu_fails(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a step, or where a prompt's caches join those of the others."""
    made, runs, real = opened({}), 0, Program.run_bound
    requests = [(prompt, GREEDY) for prompt in prompts_of(1)]
    wanted = [alone(*request) for request in requests]
    batch = made.batch()
    assert answers(batch, requests) == wanted

    def run(*arguments: Any) -> Any:
        nonlocal runs
        runs += 1
        if runs == 1 + fails:
            raise DeviceError("on purpose")
        return real(*arguments)

    monkeypatch.setattr(Program, "run_bound", run)
    assert answers(batch, requests) == wanted
    assert runs > fails
    made.session.state.gpu.circuit.reset()


def test_onnxruntime_does_what_the_turns_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened()
    requests = [(prompt, {**GREEDY, **asked}) for prompt, asked in zip(prompts_of(1), DRAWN, strict=True)]
    wanted = [alone(*request) for request in requests]
    monkeypatch.setattr(Turns, "run", lambda *_: False)
    assert answers(made.batch(), requests) == wanted


def test_a_lost_device_closes_the_batch_and_not_its_generator() -> None:
    made = opened({"faults": "lost@9;seed=1"})
    requests = [(prompt, GREEDY) for prompt in prompts_of(1)]
    batch = made.batch()
    with pytest.raises(DeviceError):
        answers(batch, requests)
    with pytest.raises(InputError, match=r"an exception closed it \(.*make another one"):
        batch.step()
    assert answers(made.batch(), requests) == [alone(*request) for request in requests]


@pytest.mark.parametrize("options", SIDES[:2], ids=str)
def test_threads_that_share_a_batch_and_its_generator(options: dict[str, Any]) -> None:
    """Some add, one steps, another generates beside: each row has its prompt's tokens, and the generation a part of its
    own, until a prompt takes its caches."""
    made, prompts = opened(options, rows=4), prompts_of(6, (3, 8, 5, 11))
    wanted, own = [alone(prompt, GREEDY) for prompt in prompts], alone(prompts[0], {"max_new_tokens": 20})
    batch, rows, tokens = made.batch(), dict[int, int](), dict[int, list[int]]()

    def add(k: int) -> None:
        rows[batch.add(prompts[k], **GREEDY)] = k

    def step() -> None:
        while sum(map(len, tokens.values())) < sum(map(len, wanted)):
            for row, token in batch.step().items():
                tokens.setdefault(row, []).append(token)

    def generate() -> list[int]:
        found = list[int]()
        try:
            for token in made.generate(prompts[0], max_new_tokens=20):
                found.append(token)  # what came before the exception counts
        except InputError:  # a prompt has joined
            pass
        return found

    work: list[Callable[[], object]] = [*(lambda k=k: add(k) for k in range(4)), step, generate]
    *done, found = in_turns(work)  # type: ignore[arg-type]
    assert done == [None] * 5
    assert found == own[: len(found)]
    assert {rows[row]: found for row, found in tokens.items()} == dict(enumerate(wanted))
