"""Compiles the expressions of symbolic sizes into one Python function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ort_gpu_ep.ir.symbolic import Real, Size, Terms, Trace, atoms_in, text_of


class Formula:
    """The values of some sizes as one compiled function of a run's numbers.

    wanted: ints, floats, Sizes and Reals of one closed trace. Called with the numbers that the symbols stand for, it
    gives the values in that order, or None where a guard answers otherwise than when the plan was made. A count is what
    `counts` says, by its name, or else the most that it can be.
    """

    def __init__(self, trace: Trace | None, wanted: Sequence[Any]) -> None:
        self._wanted = tuple(wanted)
        self._names: dict[str, Any] = {}
        body = self._lines(trace) if trace is not None else []
        body.append(f"return ({''.join(f'{self._expression(v)}, ' for v in self._wanted)})")
        source = "def formula(n, c):\n" + "\n".join(f"    {line}" for line in body)
        exec(compile(source, "<sizes>", "exec"), self._names)
        self._function = self._names["formula"]

    def __call__(self, numbers: Sequence[int], counts: Mapping[str, int] | None = None) -> tuple[Any, ...] | None:
        try:
            return cast("tuple[Any, ...] | None", self._function(numbers, counts or {}))
        except (ArithmeticError, ValueError):  # a derived value does not exist for these sizes: planning them says why
            return None

    def _lines(self, trace: Trace) -> list[str]:
        """An assignment for each atom that is needed, and each guard as soon as its atoms are known: a guard keeps
        others from failing."""
        trace.closed = True
        needed = self._needed(trace)
        guards: dict[int, list[str]] = {}
        for (terms, relation), answer in trace.guards.items():
            test = f"{_code(terms)} {relation} 0"
            guards.setdefault(max((a for atoms, _ in terms for a in atoms), default=-1), []).append(
                test if answer else f"not ({test})"
            )
        lines = []
        for k, definition in enumerate(trace.atoms):
            if k in needed:
                lines.append(f"s{k} = {self._definition(k, definition)}")
            if k in guards:
                lines.append(f"if not ({' and '.join(guards[k])}): return None")
        return lines

    def _needed(self, trace: Trace) -> set[int]:
        atoms_wanted = [a for terms, _ in trace.guards for atoms, _ in terms for a in atoms]
        for value in self._wanted:
            atoms_wanted += (
                [value.atom]
                if isinstance(value, Real)
                else [a for atoms, _ in value.terms for a in atoms]
                if isinstance(value, Size)
                else []
            )
        needed: set[int] = set()
        while atoms_wanted:
            atom = atoms_wanted.pop()
            if atom not in needed:
                needed.add(atom)
                atoms_wanted += atoms_in(trace.atoms[atom])
        return needed

    def _definition(self, k: int, definition: tuple[Any, ...]) -> str:
        kind = definition[0]
        if kind == "symbol":
            return f"n[{definition[1]}]"
        if kind == "count":
            return f"min(c.get({definition[1]!r}, {_code(definition[2])}), {_code(definition[2])})"
        if kind in ("//", "%"):
            return f"{_code(definition[1])} {kind} {_code(definition[2])}"
        if kind == "max":
            return f"max({', '.join(_code(t) for t in definition[1:])})"
        self._names[f"call{k}"] = definition[1]
        arguments = []
        for i, (how, value) in enumerate(definition[2:]):
            if how == "is":
                self._names[f"given{k}_{i}"] = value
            arguments.append(_code(value) if how == "terms" else f"s{value}" if how == "real" else f"given{k}_{i}")
        return f"call{k}({', '.join(arguments)})"

    def _expression(self, value: Any) -> str:
        if isinstance(value, (Real, Size)):
            return f"s{value.atom}" if isinstance(value, Real) else _code(value.terms)
        name = f"number{len(self._names)}"  # infinity has no literal
        self._names[name] = value
        return name


def _code(terms: Terms) -> str:
    return f"({text_of(terms)})"
