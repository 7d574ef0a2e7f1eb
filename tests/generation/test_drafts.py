"""Drafts that a pass verifies: where they come from, that they change no token, bad input; prompts read in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.language import language_model
from ort_gpu_ep.errors import ConfigError, DeviceError, InputError
from ort_gpu_ep.generation import Generator, generator
from ort_gpu_ep.generation.drafts import Lookup, accepted, shared
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.ops.attention_split import IN_PARTS
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.session.bound_runs import state_of
from tests.decoder import decoder
from tests.generation.test_threads_and_limits import SIDES, small

PROMPTS = [np.arange(9), np.array([7]), np.tile(np.arange(40, 45), 4), np.arange(3)]
ASKED: list[dict[str, Any]] = [{}, {"temperature": 1.5, "top_k": 12, "seed": 4}]


def test_what_followed_the_last_tokens_before() -> None:
    look = Lookup()
    assert look([1, 2, 3, 4, 9, 1, 2], 3) == [3, 4, 9]
    assert look([1, 2, 3, 4, 9, 1, 2, 7, 9, 1, 2], 3) == [7, 9, 1]  # the later place
    assert look([1, 2, 3, 4, 9, 1, 2, 7, 9, 1, 2, 5], 3) == []
    assert Lookup()([5], 3) == Lookup()([5, 5], 3) == []
    assert Lookup()([5, 5, 5], 2) == [5]


def test_tokens_behind_the_first_draft_that_fails_are_not_asked_for() -> None:
    asked = list[int]()

    def choose(k: int) -> int:
        asked.append(k)
        return [3, 4, 8, 9][k]

    assert accepted([3, 4, 5], choose) == [3, 4, 8]
    assert asked == [0, 1, 2]
    assert accepted([], choose) == [3]
    assert accepted([3, 4, 8], choose) == [3, 4, 8, 9]
    assert shared([1, 2, 3], [1, 2, 5, 6]) == 2
    assert shared([1, 2], [1, 2, 5]) == 2


@pytest.mark.parametrize("asked", ASKED, ids=["greedy", "drawn"])
@pytest.mark.parametrize("options", SIDES, ids=str)
def test_no_token_is_another_one(options: dict[str, Any], asked: dict[str, Any]) -> None:
    """Also up to the last place of the caches, and with drafts of a model that knows nothing, or all."""
    plain = Generator(small(), max_length=40, provider_options=options)
    expected = [list(plain.generate(p, **asked)) for p in PROMPTS]
    for draft in (None, small(), small(seed=5)):
        other = Generator(draft, max_length=40, provider_options=options) if draft is not None else None
        ours = Generator(small(), max_length=40, provider_options=options, lookahead=3, draft=other)
        assert [list(ours.generate(p, **asked)) for p in PROMPTS] == expected
        assert list(ours.generate(PROMPTS[0], max_new_tokens=9, stop=expected[0][4:5], **asked)) == list(
            plain.generate(PROMPTS[0], max_new_tokens=9, stop=expected[0][4:5], **asked)
        )
        assert ours.session.stats()["fallbacks"] == 0
        if draft is not None and not asked and draft == small():
            assert ours.tokens_per_pass > 3


@pytest.mark.parametrize("changed", [{}, {"heads": 7, "groups": 1, "head": 32, "window": 8}], ids=str)
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_no_token_is_another_one_where_a_pass_reads_parts_of_the_keys(
    changed: dict[str, Any], bits: int | None
) -> None:
    options = {"provider_options": {"strict": 1}, "max_length": 60, "cache_bits": bits}
    expected = [list(Generator(small(**changed), **options).generate(p, max_new_tokens=30)) for p in PROMPTS]
    with forced(IN_PARTS) as choices:
        ours = Generator(small(**changed), **options, lookahead=3)
        assert [list(ours.generate(p, max_new_tokens=30)) for p in PROMPTS] == expected
    assert ours.tokens_per_pass > 1
    assert IN_PARTS in [choice.form for choice in choices.values()]


def test_nothing_is_compiled_after_the_first_answer() -> None:
    ours = Generator(small(), max_length=64, provider_options={"strict": 1}, lookahead=3)
    text = np.tile(np.arange(6), 3)
    list(ours.generate(text, max_new_tokens=20))
    gpu = ours.session.state.gpu
    compiled = gpu.compiled
    assert len(list(ours.generate(text[:13], max_new_tokens=40))) == 40
    assert gpu.compiled == compiled
    assert 1 < ours.tokens_per_pass <= 4


def test_another_generation_ends_this_one() -> None:
    ours = Generator(small(), max_length=64, lookahead=2)
    expected = list(ours.generate(PROMPTS[0], max_new_tokens=8))
    answer = ours.generate(PROMPTS[2])
    next(answer)
    assert list(ours.generate(PROMPTS[0], max_new_tokens=8)) == expected
    with pytest.raises(InputError, match="another generation"):
        list(answer)


def test_a_draft_that_also_answers_others() -> None:
    draft = Generator(small(seed=5), max_length=64)
    ours, own = (
        Generator(small(), max_length=64, lookahead=3, draft=draft),
        list(draft.generate(PROMPTS[0], max_new_tokens=8)),
    )
    expected, answer = list(Generator(small(), max_length=64).generate(PROMPTS[2], max_new_tokens=20)), list[int]()
    for token in ours.generate(PROMPTS[2], max_new_tokens=20):
        assert list(draft.generate(PROMPTS[0], max_new_tokens=8)) == own
        answer.append(token)
    assert answer == expected


def test_a_draft_that_failed_writes_the_same_drafts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caches may hold anything after that: they are not gone on with."""
    expected = list(Generator(small(), max_length=64).generate(PROMPTS[2], max_new_tokens=20))
    draft = Generator(small(), max_length=64, provider_options={"strict": 1})
    ours, real, failing = Generator(small(), max_length=64, lookahead=3, draft=draft), Program.run_bound, [True]

    def run(self: Program, *arguments: Any) -> Any:
        if failing and self.graph is draft_graph:
            failing.clear()
            raise DeviceError("on purpose")
        return real(self, *arguments)

    draft_graph = draft.session.state.partitions[0].program.graph
    monkeypatch.setattr(Program, "run_bound", run)
    with pytest.raises(DeviceError, match="on purpose"):
        list(ours.generate(PROMPTS[2], max_new_tokens=20))
    assert list(ours.generate(PROMPTS[2], max_new_tokens=20)) == expected
    assert ours.tokens_per_pass > 2


def test_a_draft_with_less_room_writes_none() -> None:
    expected = list(Generator(small(), max_length=64).generate(PROMPTS[2], max_new_tokens=30))
    ours = Generator(small(), max_length=64, lookahead=3, draft=Generator(small(), max_length=30))
    assert list(ours.generate(PROMPTS[2], max_new_tokens=30)) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lookahead": 8}, "0 to 7"),
        ({"lookahead": -1}, "0 to 7"),
        ({"draft": {}}, "at least 1 with a draft"),
        ({"lookahead": 2, "draft": {"vocabulary": 32}}, "of 32 tokens.*expected 64"),
    ],
    ids=str,
)
def test_lookahead_is_checked(changed: dict[str, Any], message: str) -> None:
    if "draft" in changed:
        changed = {**changed, "draft": Generator(small(**changed["draft"]), max_length=16)}
    with pytest.raises(ConfigError, match=message):
        Generator(small(), max_length=16, **changed)


def test_drafts_need_caches_of_one_length() -> None:
    with pytest.raises(ConfigError, match="GroupQueryAttention"):
        Generator(decoder(), lookahead=2)


@pytest.mark.parametrize("options", SIDES, ids=str)
def test_a_prompt_in_parts(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for activations is that of a part: what the step makes of a long prompt does not grow with it."""
    prompts = [np.random.default_rng(k).integers(0, 64, n) for k, n in enumerate((30, 9, 8, 17))]
    made = Generator(small(), max_length=40, provider_options=options)
    expected = [list(made.generate(p, max_new_tokens=8)) for p in prompts]
    drafted = Generator(small(), max_length=40, provider_options=options, lookahead=2)
    monkeypatch.setattr(generator, "CHUNK", 8)
    for ours in (made, drafted):
        assert [list(ours.generate(p, max_new_tokens=8)) for p in prompts] == expected


def test_who_says_how_many_tokens_a_pass_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of a session; a lookahead; the environment of a program that verifies drafts by itself."""
    monkeypatch.setenv("ORT_GPU_EP_FEW_TOKENS", "6")
    cases: list[tuple[dict[str, Any], int, int]] = [({}, 0, 6), ({}, 4, 5), ({"few_tokens": 7}, 4, 7)]
    for options, lookahead, tokens in cases:
        ours = Generator(small(), max_length=32, provider_options=options, lookahead=lookahead)
        state = state_of(ours.session)
        assert state is not None
        assert state.config.few_tokens == tokens


@pytest.mark.parametrize("lookahead", [3, 4, 7])
def test_float16_and_packed_weights(lookahead: int) -> None:
    for changed in ({"dtype": "float16"}, {"packed": True}):
        model = language_model(layers=1, **changed)
        expected = list(Generator(model, max_length=64).generate(PROMPTS[2], max_new_tokens=24))
        drafted = Generator(model, max_length=64, lookahead=lookahead)
        assert list(drafted.generate(PROMPTS[2], max_new_tokens=24)) == expected
