"""Lines of a shader body that are written once and repeated, or left out, by the kernel's constants.

    #for i in EXPRESSION      repeats the lines up to its #end for i = 0, 1, ...; `$i` and `$(i * 4 + 1)` in them become numbers
    #if EXPRESSION            keeps the lines up to its #else or #end where the expression is true, those after #else where it isn't
    #else
    #end
    #let name = EXPRESSION    a name for the rest of its block
    #include FILE             the text of a file of shaders/include, before anything else is done

An expression is Python's arithmetic over the integer and boolean constants of the kernel, and the loops around it. What it is for:
an array that a loop indexes is kept in registers only by those drivers that unroll that loop; variables with names are everywhere.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ort_gpu_ep.errors import InternalError

_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.USub: operator.neg, ast.Not: operator.not_}

_INCLUDE = re.compile(r"(?m)^[ ]*#include[ ]+(\S+)[ ]*\n?")
_DIRECTIVE = re.compile(r"\s*#(for|if|else|end|let)\b(.*)")
_LOOP = re.compile(r"(\w+) in (.+)")
_NAME = re.compile(r"(\w+) = (.+)")


@dataclass
class _Block:
    """A directive and the lines that it governs; strings are plain lines. word: for, if or let; empty for the whole text."""

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

    text_of: gives a file's text, and raises where there is none. within: the files that are being included. Raises InternalError for a
    file that includes itself, directly or by others.
    """
    if name in within:
        raise InternalError(f"shader file {name!r} includes itself: {' -> '.join((*within, name))}")
    try:
        text = text_of(name)
    except InternalError as error:
        raise InternalError(f"{error}{f', which {within[-1]!r} includes' if within else ''}") from None
    return _INCLUDE.sub(lambda found: resolved(f"include/{found[1]}", text_of, (*within, name)), text)


def expand(text: str, constants: Mapping[str, int]) -> str:
    """The text without directives. Raises InternalError for a malformed one, or one that names what the constants lack."""
    if not re.search(r"(?m)^\s*#", text):
        return text
    return "\n".join(_written(_parsed(text).lines, dict(constants)))


def _parsed(text: str) -> _Block:
    stack = [_Block()]
    for number, line in enumerate(text.split("\n"), 1):
        found = _DIRECTIVE.fullmatch(line)
        where = f"line {number}, {line.strip()!r}"
        if found is None:
            stack[-1].open.append(line)
        elif found[1] in ("for", "if", "let"):
            form = {"for": _LOOP, "let": _NAME}.get(found[1])
            parts = form.fullmatch(found[2].strip()) if form else None
            if form and parts is None:
                raise InternalError(f"shader text, {where}: expected `#for NAME in EXPRESSION` or `#let NAME = EXPRESSION`")
            block = _Block(found[1], where, parts[1] if parts else "", parts[2] if parts else found[2].strip())
            stack[-1].open.append(block)
            if found[1] != "let":
                stack.append(block)
        elif len(stack) == 1 or (found[1] == "else" and (stack[-1].word == "for" or stack[-1].otherwise is not None)):
            raise InternalError(f"shader text, {where}: nothing is open that it could belong to")
        elif found[1] == "else":
            stack[-1].otherwise = []
        else:
            stack.pop()
    if len(stack) > 1:
        raise InternalError(f"shader text, {stack[-1].where}: without an #end")
    return stack[0]


def _written(lines: list[str | _Block], names: dict[str, int]) -> list[str]:
    out: list[str] = []
    names = dict(names)
    for line in lines:
        if isinstance(line, str):
            out.append(_inserted(line, names) if "$" in line else line)
            continue
        value = _value(line.expression, names, line.where)
        if line.word == "let":
            names[line.variable] = value
        elif line.word == "for":
            for k in range(value):
                out += _written(line.lines, {**names, line.variable: k})
        else:
            out += _written(line.lines if value else line.otherwise or [], names)
    return out


def _inserted(line: str, names: Mapping[str, int]) -> str:
    """`$name` and `$(expression)` as numbers."""
    out, at = "", 0
    for found in re.finditer(r"\$(\w+|\()", line):
        if found.start() < at:
            continue
        end = found.end()
        if found[1] == "(":
            depth = 1
            while depth and end < len(line):
                depth += {"(": 1, ")": -1}.get(line[end], 0)
                end += 1
        out += line[at:found.start()] + str(int(_value(line[found.start() + 1:end], names, repr(line.strip()))))
        at = end
    return out + line[at:]


def _value(expression: str, names: Mapping[str, int], where: str) -> int:
    try:
        return int(_of(ast.parse(expression, mode="eval").body, names))
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        raise InternalError(f"shader text, {where}: {expression!r} is no expression over {', '.join(names)}: {error!r}") from error


def _of(node: ast.expr, names: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int()):
            return node.value
        case ast.Name():
            return names[node.id]
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_of(node.left, names), _of(node.right, names))
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_of(node.operand, names))
        case ast.Compare(ops=[only], comparators=[right]):
            return _OPERATORS[type(only)](_of(node.left, names), _of(right, names))
        case ast.BoolOp():
            values = [bool(_of(value, names)) for value in node.values]
            return all(values) if isinstance(node.op, ast.And) else any(values)
        case ast.IfExp():
            return _of(node.body if _of(node.test, names) else node.orelse, names)
        case _:
            raise TypeError(f"{type(node).__name__} is not taken")
