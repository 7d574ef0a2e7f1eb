"""Beam search against one in numpy that reads whole answers anew, as transformers defines it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from models.encoder_decoder import decoders, encoder, merged_decoder
from ort_gpu_ep import EncoderDecoder
from ort_gpu_ep.errors import ConfigError, InputError
from ort_gpu_ep.plugin.state import COPIES
from tests.encoder_decoder import BANDS, FRAMES, START, WORDS, Plain

STOP = (4, 58, 79, 83)
"""Tokens that are likely here."""


@pytest.fixture(scope="module", params=["two", "merged", "sound"])
def pair(request: pytest.FixtureRequest) -> tuple[EncoderDecoder, Plain, bool]:
    sound = request.param == "sound"
    parts = decoders(sound) if request.param == "two" else [merged_decoder(sound)]
    return EncoderDecoder(encoder(sound), *parts, max_length=64, provider_options={"strict": 1}), Plain(sound), sound


def inputs_of(rng: np.random.Generator, sound: bool) -> Any:
    return rng.standard_normal((BANDS, FRAMES)).astype("f") if sound else rng.integers(3, WORDS, 9)


def searched(
    plain: Plain,
    inputs: Any,
    start: list[int],
    beams: int,
    count: int,
    penalty: float,
    early: bool | str,
    stop: tuple[int, ...],
) -> list[tuple[float, tuple[int, ...]]]:
    """Scores and answers, the best first."""
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended = list[tuple[float, tuple[int, ...]]]()
    for length in range(1, count + 1):
        logits = plain.logits(inputs, [[*start, *answer] for _, answer in running]).astype("f8")
        likely = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        pairs = product(enumerate(running), range(WORDS))
        every = [(total + likely[row, word], (*answer, word)) for (row, (total, answer)), word in pairs]
        best = sorted(every, reverse=True)[: max(2, 1 + len(stop)) * beams]
        is_last = [answer[-1] in stop or length == count for _, answer in best]
        ended += [
            (total / length**penalty, answer)
            for (total, answer), last in zip(best[:beams], is_last[:beams], strict=True)
            if last
        ]
        ended = sorted(ended, reverse=True)[:beams]
        running = [beam for beam, last in zip(best, is_last, strict=True) if not last][:beams]
        reach = count if early == "never" and penalty > 0 else length
        full = len(ended) == beams
        if not running or (full and (early is True or running[0][0] / reach**penalty <= ended[-1][0])):
            break
    return ended


@pytest.mark.parametrize("early", [False, True, "never"])
def test_the_answers_of_plain_search(
    pair: tuple[EncoderDecoder, Plain, bool], early: Any, rng: np.random.Generator
) -> None:
    opened, plain, sound = pair
    lengths = set[int]()
    for beams, penalty, stop, start in (
        (4, 1.0, STOP, [START]),
        (3, -0.7, (), [START, 7]),
        (2, 2.0, STOP[:1], [START]),
    ):
        inputs = inputs_of(rng, sound)
        answers = opened.beam_search(
            inputs,
            start,
            num_beams=beams,
            length_penalty=penalty,
            early_stopping=early,
            max_new_tokens=9,
            stop=stop,
        )
        expected = searched(plain, inputs, start, beams, 9, penalty, early, stop)
        assert [answer.tokens for answer in answers] == [[*tokens] for _, tokens in expected]
        np.testing.assert_allclose([answer.score for answer in answers], [s for s, _ in expected], rtol=2e-5, atol=2e-5)
        lengths |= {len(answer.tokens) for answer in answers}
    assert len(lengths) > 1
    assert not any(session.stats()["fallbacks"] for session in opened.sessions)


def test_one_beam_is_the_most_likely_tokens(pair: tuple[EncoderDecoder, Plain, bool], rng: np.random.Generator) -> None:
    opened, _, sound = pair
    inputs = inputs_of(rng, sound)
    (answer,) = opened.beam_search(inputs, [START], num_beams=1, max_new_tokens=8)
    assert answer.tokens == list(opened.generate(inputs, [START], max_new_tokens=8))


def test_more_beams_than_words() -> None:
    opened = EncoderDecoder(encoder(), merged_decoder(), provider_options={"strict": 1})
    answers = opened.beam_search([5, 6], [START], num_beams=WORDS + 1, max_new_tokens=2)
    expected = searched(Plain(), [5, 6], [START], WORDS + 1, 2, 1.0, False, ())
    assert [answer.tokens for answer in answers[:20]] == [[*tokens] for _, tokens in expected[:20]]
    assert len(answers) == WORDS + 1


def test_only_candidates_cross(pair: tuple[EncoderDecoder, Plain, bool], rng: np.random.Generator) -> None:
    opened, _, sound = pair

    def search() -> None:
        opened.beam_search(inputs_of(rng, sound), [START], num_beams=4, max_new_tokens=20)

    for _ in range(3):
        search()
    allowances, before = [session.state.allowance for session in opened.sessions], COPIES.as_dict()
    compiled, held = opened.sessions[1].state.gpu.compiled, [allowance.held_nbytes for allowance in allowances]
    for _ in range(5):
        search()
    crossed = {kind: count - before[kind] for kind, count in COPIES.as_dict().items()}
    # sums and places of 8 candidates a step, and whether logits leave a token, of one row first
    assert crossed["device_to_host_nbytes"] == 5 * (20 * 8 * (4 + 8) + (1 + 19 * 4) * 8)
    assert crossed["device_to_device"] == 0
    assert crossed["host_to_device_nbytes"] < 5 * (20 * 4 * (8 + 8 + 4) + 4 * max(BANDS * FRAMES, 3 * 2 * 9))
    assert opened.sessions[1].state.gpu.compiled == compiled
    assert all(a.held_nbytes <= before + 256 for a, before in zip(allowances, held, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 0},
        {"num_beams": 1.5},
        {"max_new_tokens": 0},
        {"length_penalty": np.nan},
        {"early_stopping": "soon"},
    ],
    ids=str,
)
def test_bad_options(
    options: dict[str, Any], pair: tuple[EncoderDecoder, Plain, bool], rng: np.random.Generator
) -> None:
    opened, _, sound = pair
    with pytest.raises(ConfigError, match=next(iter(options))):
        opened.beam_search(inputs_of(rng, sound), [START], **options)


def test_bad_inputs() -> None:
    opened = EncoderDecoder(encoder(True), merged_decoder(True), provider_options={"placement": "cpu"})
    for inputs, start in ((np.zeros((BANDS, 3), "f"), [START]), (np.zeros((BANDS, FRAMES), "f"), [])):
        with pytest.raises(InputError, match="generate: i"):
            opened.beam_search(inputs, start)
    with pytest.raises(InputError, match="NaN"):
        opened.beam_search(np.full((BANDS, FRAMES), np.nan, "f"), [START], max_new_tokens=2)
