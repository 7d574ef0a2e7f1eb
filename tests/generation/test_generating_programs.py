"""Generations as programs use them: several at once, some left in the middle, other threads, little memory. Always ONNX
Runtime's tokens."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ort_gpu_ep
from models.language import language_model
from ort_gpu_ep.generation import Generator
from tests.session.test_language_models import generated, prompt_of, session

PACKAGE = str(Path(ort_gpu_ep.__file__).parent)
TOKENS = 6
PROMPTS = [prompt_of(seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    plain = session(language_model(), "plain")
    return [generated(plain, prompt)[0] for prompt in PROMPTS]


def opened(**options: Any) -> Generator:
    return Generator(language_model(), max_length=64, provider_options=options or None)


def test_two_in_turn(wanted: list[list[int]]) -> None:
    # nobody else holds the generators
    both = [opened().generate(prompt, max_new_tokens=TOKENS) for prompt in PROMPTS[:2]]
    assert list(zip(*both, strict=True)) == list(zip(*wanted[:2], strict=True))


def test_one_in_each_of_several_threads(wanted: list[list[int]]) -> None:
    def tokens(prompt: Any) -> list[list[int]]:
        made = opened()
        return [list(made.generate(prompt, max_new_tokens=TOKENS)) for _ in range(2)]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(tokens, PROMPTS)) == [[found, found] for found in wanted]


def test_one_that_goes_on_in_another_thread(wanted: list[list[int]]) -> None:
    tokens = opened().generate(PROMPTS[0], max_new_tokens=TOKENS)
    first = [next(tokens), next(tokens)]
    with ThreadPoolExecutor(1) as pool:
        assert first + pool.submit(list, tokens).result() == wanted[0]


def test_some_that_are_left_in_the_middle(wanted: list[list[int]]) -> None:
    made = opened()
    for options in ({}, {"temperature": 1.0, "seed": 1}):
        left = made.generate(PROMPTS[1], **options)
        next(left)
        del left
        assert list(made.generate(PROMPTS[0], max_new_tokens=TOKENS)) == wanted[0]


def interrupted(function: Callable[[], Any], at: int) -> int:
    """Calls it, with a Ctrl-C where the package is at its `at`-th line. Returns how many lines there were until it
    ended."""
    before, count = sys.gettrace(), 0

    def traced(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if PACKAGE not in frame.f_code.co_filename:
            return None
        count += event == "line"
        if count == at and event == "line":
            sys.settrace(before)
            signal.raise_signal(signal.SIGINT)
        return traced

    sys.settrace(traced)
    try:
        function()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 3}], ids=str)
def test_some_that_are_interrupted(options: dict[str, Any]) -> None:
    """Wherever Ctrl-C meets it: a step whose readback was not submitted yet wrote into the next generation's values."""
    made = opened()

    def tokens() -> list[int]:
        return list(made.generate(PROMPTS[0], max_new_tokens=TOKENS, **options))

    wanted = tokens()
    tokens()  # what is made once is there
    lines = interrupted(tokens, 0)
    assert lines > 1000
    for at in range(1, lines, lines // 50):
        interrupted(tokens, at)
        assert tokens() == wanted, f"behind line {at} of {lines}"


def test_a_prompt_is_read_when_it_is_given(wanted: list[list[int]]) -> None:
    prompt = PROMPTS[0].astype("i8").copy()
    tokens = opened().generate(prompt, max_new_tokens=TOKENS)
    prompt[:] = 0
    assert list(tokens) == wanted[0]


def test_little_memory_is_one_generators_own() -> None:
    model = language_model(vocabulary=4096)  # a table of 2 MiB
    plain = generated(session(model, "plain"), PROMPTS[0])[0]
    for limit, falls in ((1, True), (0, False)):
        made = Generator(model, max_length=64, provider_options={"memory_limit_mb": limit})
        assert list(made.generate(PROMPTS[0], max_new_tokens=TOKENS)) == plain
        assert (made.session.stats()["fallbacks"] > 0) is falls
