"""Directives in shader bodies: repeated and chosen lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.shaders import composer
from ort_gpu_ep.shaders.unroll import expand, resolved


def test_text_without_directives_is_left_alone() -> None:
    assert expand("let a = 1u;\n  // $i #for\n", {}) == "let a = 1u;\n  // $i #for\n"


def test_loops_nest_and_insert_arithmetic() -> None:
    text = "#for i in N // 2\n#for j in i + 1\nvar v$i_$j = $((i * 10 + j) * 2);\n#end\n#end"
    assert expand(text.replace("$i_", "$(i)_"), {"N": 4}).split("\n") == [
        "var v0_0 = 0;",
        "var v1_0 = 20;",
        "var v1_1 = 22;",
    ]


def test_names_hold_to_the_end_of_their_block() -> None:
    assert expand("#for i in 2\n#let k = i * 3\n$k\n#end\n#let k = 7\n$(k + 1)", {}).split("\n") == ["0", "3", "8"]


def test_a_default_is_for_what_the_kernel_does_not_say() -> None:
    assert expand("#default A = 2\n#default B = A * 3\n$A $B", {"A": 5}) == "5 15"


def test_a_truth_is_a_number() -> None:
    assert (
        expand("#let k = A and B\n#let n = not A or B > 7\n$k $(A == 2) $(k + (A or B)) $n", {"A": 2, "B": 3})
        == "1 1 2 0"
    )


@pytest.mark.parametrize(("a", "kept"), [(1, "yes"), (0, "no")])
def test_conditions_choose(a: int, kept: str) -> None:
    assert expand("#if A == 1 and not B\nyes\n#else\nno\n#end", {"A": a, "B": False}) == kept


@pytest.mark.parametrize(
    "text",
    [
        "#for i in\n#end",
        "#end",
        "#if 1\nx",
        "#else\n",
        "#for i in N\n#else\n#end",
        "#if UNKNOWN\n#end",
        "#if f(1)\n#end",
        "#if 1 // 0\n#end",
        "#if 1\n#else\n#else\n#end",
        "#let a 1",
        "#default a 1",
    ],
)
def test_what_is_malformed_is_named(text: str) -> None:
    with pytest.raises(InternalError, match=r"line|'"):
        expand(text, {"N": 2})


FILES = {
    "a.wgsl": "fn a() {\n    #include b.wgsl\n}\n// #include in a comment\n",
    "include/b.wgsl": "x;\n#include c.wgsl\n",
    "include/c.wgsl": "y;\n",
    "lost.wgsl": "#include nowhere.wgsl",
    "loop.wgsl": "#include d.wgsl\n",
    "include/d.wgsl": "#include e.wgsl\n",
    "include/e.wgsl": "#include d.wgsl\n",
}


def text_of(name: str) -> str:
    if name not in FILES:
        raise InternalError(f"no shader file {name!r}")
    return FILES[name]


def test_files_are_included_where_they_are_named_and_what_they_include() -> None:
    assert resolved("a.wgsl", text_of) == "fn a() {\nx;\ny;\n}\n// #include in a comment\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lost.wgsl", "no shader file 'include/nowhere.wgsl', which 'lost.wgsl' includes"),
        ("gone.wgsl", "no shader file 'gone.wgsl'$"),
        (
            "loop.wgsl",
            "'include/d.wgsl' includes itself: loop.wgsl -> include/d.wgsl -> include/e.wgsl -> include/d.wgsl",
        ),
    ],
)
def test_what_cannot_be_included(name: str, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        resolved(name, text_of)


def test_every_file_to_include_is_included_at_two_places() -> None:
    folder = Path(composer.__file__).parent
    texts = [path.read_text("utf-8") for path in folder.rglob("*.wgsl")]
    for path in (folder / "include").glob("*.wgsl"):
        assert sum(text.count(f"#include {path.name}\n") for text in texts) > 1, path.name
        assert "#include" not in composer.body(
            next(p.name for p in folder.glob("*.wgsl") if f"#include {path.name}" in p.read_text("utf-8"))
        )
