"""Drafts of the tokens to come, which one pass of the decoder verifies together: where they come from, and which of
them hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Drafts = Callable[[Sequence[int], int], Sequence[int]]
"""Of the tokens so far, prompt and answer, at most so many that may follow. Any tokens are right: they cost time, and
change nothing."""

LONGEST, SHORTEST = 4, 2
"""Tokens of the ends that Lookup compares. An end of one token is found nearly always, and foretells little."""


class Lookup:
    """Drafts from the text itself: what followed when its last tokens stood there before. For one generation.

    Answers repeat names, code and quotations of their prompt. Source: Saxena, "Prompt lookup decoding", 2023.
    """

    def __init__(self) -> None:
        self._behind, self._seen = dict[tuple[int, ...], int](), 0

    def __call__(self, tokens: Sequence[int], count: int) -> Sequence[int]:
        for place in range(self._seen, len(tokens)):
            for length in range(SHORTEST, min(LONGEST, place) + 1):
                # the latest place counts: the text goes on as it did last
                self._behind[tuple(tokens[place - length : place])] = place
        self._seen = len(tokens)
        for length in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
            behind = self._behind.get(tuple(tokens[-length:]))
            if behind is not None:
                return list(tokens[behind : behind + count])
        return []


def accepted(drafts: Sequence[int], choose: Callable[[int], int]) -> list[int]:
    """The tokens of a pass over the last token and drafts behind it, at least one.

    choose: the token behind the k-th of what the pass read. It is asked for one place after another, so random tokens
    are drawn in order.
    """
    tokens = [choose(0)]
    for place, draft in enumerate(drafts, 1):
        if draft != tokens[-1]:
            break
        tokens.append(choose(place))
    return tokens


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
