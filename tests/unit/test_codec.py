"""Dataclasses as JSON rows: what is written comes back, and what no `encode` gives is refused, also where values are
taken as they stand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import pytest

from ort_gpu_ep import store
from ort_gpu_ep.codec import Codec


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True)
class Leaf:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tree:
    leaf: Leaf
    constants: tuple[tuple[str, int | float | bool], ...] = ()
    pairs: tuple[tuple[str, Leaf], ...] = ()
    side: Side = Side.LEFT
    how: Literal["a", "b"] = "a"
    factor: float = 0.0
    data: bytes = b""
    where: int | str | None = None
    maybe: Leaf | None = None
    flags: tuple[bool, bool] = (True, False)


CODEC = Codec(Tree, {})
WHOLE = Tree(
    Leaf("x", (1, 2)),
    (("A", 1), ("B", 2.5), ("C", True), ("D", float("inf"))),
    (("p", Leaf("y")), ("q", Leaf("x", (1, 2)))),
    Side.RIGHT,
    "b",
    float("-inf"),
    b"\0\xff",
    "w",
    Leaf("z"),
    (False, True),
)


def rows_of(tree: Tree) -> list[list[Any]]:
    return store.parse_json(json.dumps(CODEC.encode(tree), allow_nan=False).encode())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "tree", [WHOLE, Tree(Leaf("x")), Tree(Leaf("x"), where=3), Tree(Leaf("x", (0,)), (("A", -1),), factor=1)]
)
def test_it_comes_back_as_it_was(tree: Tree) -> None:
    found = CODEC.decode(Tree, rows_of(tree))
    assert found == tree
    assert [type(value) for _, value in found.constants] == [type(value) for _, value in tree.constants]
    assert rows_of(found) == rows_of(tree)


FIELDS = {name: k + 1 for k, name in enumerate(Tree.__dataclass_fields__)}


@pytest.mark.parametrize(
    ("field", "raw"),
    [
        ("leaf", 9),
        ("leaf", True),
        ("leaf", "0"),
        ("leaf", None),
        ("constants", [["A", 1], []]),
        ("constants", [["A"]]),
        ("constants", [["A", "1"]]),
        ("constants", [["A", None]]),
        ("constants", [["A", 1, 2]]),
        ("constants", ["AB"]),
        ("constants", {"A": 1}),
        ("constants", [[1, "A"]]),
        ("pairs", [["p", 7]]),
        ("pairs", [["p", 0.0]]),
        ("pairs", [["p"]]),
        ("side", "up"),
        ("side", 1),
        ("how", "c"),
        ("factor", "1"),
        ("factor", True),
        ("factor", {"float": "1"}),
        ("data", 1),
        ("data", "not base64"),
        ("where", 1.5),
        ("where", [1]),
        ("where", False),
        ("maybe", 1.0),
        ("maybe", "x"),
        ("maybe", -1),
        ("flags", [True]),
        ("flags", [1, 0]),
        ("flags", [True, False, True]),
        ("flags", 3),
    ],
)
def test_what_no_one_has_written_is_refused(field: str, raw: object) -> None:
    rows = rows_of(WHOLE)
    rows[-1][FIELDS[field]] = raw
    with pytest.raises(ValueError, match=r"got|base64|padding|characters"):
        CODEC.decode(Tree, rows)


@pytest.mark.parametrize("raw", [[1, True], [1, 2.0], [1, "2"], [[1]], [None], [{"size": []}]])
def test_a_row_of_numbers_holds_nothing_else(raw: list[object]) -> None:
    rows = rows_of(Tree(Leaf("x", (1, 2))))
    rows[0][2] = raw
    with pytest.raises(ValueError, match="expected a number"):
        CODEC.decode(Tree, rows)


@pytest.mark.parametrize(
    "tree",
    [
        Tree(Leaf("x", (1, True))),
        Tree(Leaf("x", [1])),
        Tree(Leaf("x"), (("A", None),)),
        Tree(Leaf("x"), (["A", 1],)),
        Tree(3),  # type: ignore[arg-type]
        Tree(Leaf("x"), maybe=Side.LEFT),
        Tree(Leaf("x"), where=1.5),
        Tree(Leaf("x"), flags=(True,)),
    ],
)  # type: ignore[arg-type]
def test_what_is_not_as_its_annotation_says_is_not_written(tree: Tree) -> None:
    with pytest.raises((TypeError, ValueError), match=r"expected|none of its"):
        CODEC.encode(tree)


@pytest.mark.parametrize(
    "text",
    [
        "9" * 21,
        "-" + "1" * 20,
        "1e309",
        "-1E+400",
        "1" * 400,
        "1" * 250 + "e99",
        "1" * 250 + ".5e99",
        "NaN",
        "-Infinity",
        "[" * 100_000,
    ],
)
def test_numbers_that_no_file_of_ours_has(text: str) -> None:
    with pytest.raises(ValueError, match=r"digits|finite|deeply"):
        store.parse_json(text.encode())


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, -2e-300, 1e308, 5e-324])
def test_numbers_that_are_read_as_they_are(number: float) -> None:
    read = store.parse_json(json.dumps({"n": [number]}).encode())["n"][0]
    assert (read, type(read)) == (number, type(number))
