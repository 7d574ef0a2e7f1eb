"""Lines of a shader body that are written once and repeated, or left out, by the kernel's constants.

    #for i in EXPRESSION      repeats the lines up to its #end for i = 0, 1, ...; `$i` and `$(i * 4 + 1)` in them become numbers
    #if EXPRESSION            keeps the lines up to its #else or #end where the expression is true, those after #else where it isn't
    #else
    #end
    #let name = EXPRESSION    a name for the rest of its block
    #default name = EXPRESSION    the same, where the kernel has no constant of that name
    #include FILE             the text of a file of shaders/include, before anything else is done

An expression is Python's arithmetic over the integer and boolean constants of the kernel, and the loops around it. What
it is for: an array that a loop indexes is kept in registers only by those drivers that unroll that loop; variables with
names are everywhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from ort_gpu_ep.errors import InternalError

_NODES = (
    ast.Expression,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.BoolOp,
    ast.IfExp,
    ast.And,
    ast.Or,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.BitAnd,
    ast.BitOr,
    ast.BitXor,
    ast.USub,
    ast.Not,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
)
"""What an expression may consist of."""

_KEPT = 8192
"""Lines and expressions that are kept as read: those of all shader files are some thousands, and one shader names them
10,000 times."""

_INCLUDE = re.compile(r"(?m)^[ ]*#include[ ]+(\S+)[ ]*\n?")
_DIRECTIVE = re.compile(r"\s*#(for|if|else|end|let|default)\b(.*)")
_LOOP = re.compile(r"(\w+) in (.+)")
_NAME = re.compile(r"(\w+) = (.+)")


@dataclass
class _Block:
    """A directive and the lines that it governs; strings are plain lines. word: for, if, let or default; empty for the
    whole text."""

    word: str = ""
    where: str = ""
    variable: str = ""
    expression: str = ""
    lines: list[str | _Block] = field(default_factory=list)
    otherwise: list[str | _Block] | None = None

    @property
    def open(self) -> list[str | _Block]:
        return self.lines if self.otherwise is None else self.otherwise


def resolved(name: str, text_of: Callable[[str], str], within: tuple[str, ...] = ()) -> str:
    """The text of a file, with the files of the folder `include` in place of the lines that name them.

    text_of: gives a file's text, and raises where there is none. within: the files that are being included. Raises
    InternalError for a file that includes itself, directly or by others.
    """
    if name in within:
        raise InternalError(f"shader file {name!r} includes itself: {' -> '.join((*within, name))}")
    try:
        text = text_of(name)
    except InternalError as error:
        raise InternalError(f"{error}{f', which {within[-1]!r} includes' if within else ''}") from None
    return _INCLUDE.sub(lambda found: resolved(f"include/{found[1]}", text_of, (*within, name)), text)


def expand(text: str, constants: Mapping[str, int]) -> str:
    """The text without directives. Raises InternalError for a malformed one, or one that names what the constants
    lack."""
    if not re.search(r"(?m)^\s*#", text):
        return text
    return "\n".join(_written(_parsed(text).lines, dict(constants)))


@lru_cache(256)
def _parsed(text: str) -> _Block:
    stack = [_Block()]
    for number, line in enumerate(text.split("\n"), 1):
        match = _DIRECTIVE.fullmatch(line)
        where = f"line {number}, {line.strip()!r}"
        if match is None:
            stack[-1].open.append(line)
        elif match[1] in ("for", "if", "let", "default"):
            form = {"for": _LOOP, "let": _NAME, "default": _NAME}.get(match[1])
            parts = form.fullmatch(match[2].strip()) if form else None
            if form and parts is None:
                raise InternalError(
                    f"shader text, {where}: expected `#for NAME in EXPRESSION` or `#let NAME = EXPRESSION`"
                )
            block = _Block(match[1], where, parts[1] if parts else "", parts[2] if parts else match[2].strip())
            stack[-1].open.append(block)
            if match[1] in ("for", "if"):
                stack.append(block)
        elif len(stack) == 1 or (match[1] == "else" and (stack[-1].word == "for" or stack[-1].otherwise is not None)):
            raise InternalError(f"shader text, {where}: nothing is open that it could belong to")
        elif match[1] == "else":
            stack[-1].otherwise = []
        else:
            stack.pop()
    if len(stack) > 1:
        raise InternalError(f"shader text, {stack[-1].where}: without an #end")
    return stack[0]


def _written(lines: list[str | _Block], names: dict[str, int]) -> list[str]:
    """names: the block's own, to which it adds."""
    out: list[str] = []
    for line in lines:
        if isinstance(line, str):
            out.append(str(_evaluated(_line, line, names, line)) if "$" in line else line)
            continue
        value = _value(line.expression, names, line.where)
        if line.word == "let":
            names[line.variable] = value
        elif line.word == "default":
            names.setdefault(line.variable, value)
        elif line.word == "for":
            for k in range(value):
                out += _written(line.lines, {**names, line.variable: k})
        else:
            out += _written(line.lines if value else line.otherwise or [], dict(names))
    return out


def _value(expression: str, names: Mapping[str, int], where: str) -> int:
    return int(_evaluated(_expression, expression, names, where))


def _evaluated(compiled: Callable[[str], CodeType], text: str, names: Mapping[str, int], where: str) -> Any:
    try:
        return eval(compiled(text), {"__builtins__": {}}, names)
    except (SyntaxError, NameError, TypeError, ZeroDivisionError) as error:
        raise InternalError(
            f"shader text, {where.strip()}: {text!r} has no value over {', '.join(names)}: {error!r}"
        ) from error


@lru_cache(_KEPT)
def _expression(text: str) -> CodeType:
    return _compiled(_parsed_expression(text))


@lru_cache(_KEPT)
def _line(line: str) -> CodeType:
    """A line as one f-string: parsing each expression each time took most of a program's start."""
    pieces, at = list[ast.expr](), 0
    for match in re.finditer(r"\$(\w+|\()", line):
        if match.start() < at:
            continue
        end = match.end()
        if match[1] == "(":
            depth = 1
            while depth and end < len(line):
                depth += {"(": 1, ")": -1}.get(line[end], 0)
                end += 1
        number = ast.UnaryOp(ast.UAdd(), _parsed_expression(line[match.start() + 1 : end]))  # of a truth, 0 or 1
        pieces += [ast.Constant(line[at : match.start()]), ast.FormattedValue(number, -1)]
        at = end
    return _compiled(ast.JoinedStr([*pieces, ast.Constant(line[at:])]))


def _parsed_expression(text: str) -> ast.expr:
    """Raises SyntaxError, TypeError."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or (isinstance(node, ast.Constant) and not isinstance(node.value, int)):
            raise TypeError(f"{type(node).__name__} is not taken")
    expression: ast.expr = _Truth().visit(tree.body)
    return expression


def _compiled(expression: ast.expr) -> CodeType:
    return compile(ast.fix_missing_locations(ast.Expression(expression)), "<shader>", "eval")


class _Truth(ast.NodeTransformer):
    """`and` and `or` give true or false, where Python gives one of their sides."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node))
