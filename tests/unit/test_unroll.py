"""Directives in shader bodies: repeated and chosen lines."""

from __future__ import annotations

import pytest

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.shaders.unroll import expand


def test_text_without_directives_is_left_alone() -> None:
    assert expand("let a = 1u;\n  // $i #for\n", {}) == "let a = 1u;\n  // $i #for\n"


def test_loops_nest_and_insert_arithmetic() -> None:
    text = "#for i in N // 2\n#for j in i + 1\nvar v$i_$j = $((i * 10 + j) * 2);\n#end\n#end"
    assert expand(text.replace("$i_", "$(i)_"), {"N": 4}).split("\n") == ["var v0_0 = 0;", "var v1_0 = 20;", "var v1_1 = 22;"]


def test_names_hold_to_the_end_of_their_block() -> None:
    assert expand("#for i in 2\n#let k = i * 3\n$k\n#end\n#let k = 7\n$(k + 1)", {}).split("\n") == ["0", "3", "8"]


@pytest.mark.parametrize(("a", "kept"), [(1, "yes"), (0, "no")])
def test_conditions_choose(a: int, kept: str) -> None:
    assert expand("#if A == 1 and not B\nyes\n#else\nno\n#end", {"A": a, "B": False}) == kept


@pytest.mark.parametrize("text", [
    "#for i in\n#end", "#end", "#if 1\nx", "#else\n", "#for i in N\n#else\n#end", "#if UNKNOWN\n#end", "#if f(1)\n#end", "#if 1 // 0\n#end",
    "#if 1\n#else\n#else\n#end", "#let a 1"])
def test_what_is_malformed_is_named(text: str) -> None:
    with pytest.raises(InternalError, match=r"line|'"):
        expand(text, {"N": 2})
