"""Sizes that follow from counts: the programs by which the device calculates them during a run.

A count (ir/symbolic.py) is known to the kernel that finds it, and to nobody else until the run is over. What follows
from it goes where kernels look for sizes anyway: into their uniform structs, or into a value that holds sizes.
`sizes.wgsl` writes it there, right behind the kernel that finds the last of the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ort_gpu_ep.ir.symbolic import CountError, Size, Terms, Trace, counts_of
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.lowering import SIZES
from ort_gpu_ep.kernels.registry import OFFSET_ALIGNMENT, Bindings, Kernel, kernel
from ort_gpu_ep.shaders.composer import MAP_WORKGROUP_SIZE, parameters

_NUMBER, _COUNT, _ADD, _MULTIPLY, _DIVIDE, _REMAINDER, _MAX, _CHECK, _STORE = range(9)

STEPS, STACK = 96, 8
"""Instructions of a program, and numbers that it has at hand, at most."""


class _Program:
    """Instructions, two words each, which leave a size on the stack. counts: their names, in the order of the
    bindings."""

    def __init__(self, counts: Sequence[str]) -> None:
        self._counts, self.words, self._depth = list(counts), list[Any](), 0

    def _add(self, operation: int, word: Any, grows: int) -> None:
        self.words += [operation, word]
        self._depth += grows
        if self._depth > STACK or len(self.words) > 2 * STEPS:
            raise CountError("a size takes too many steps to calculate from counts")

    def size(self, value: Any) -> None:
        if counts_of(value):
            self._polynomial(value.trace, value.terms)
        else:
            self._add(_NUMBER, value % (1 << 32), 1)

    def end(self, operation: int, place: int) -> None:
        self._add(operation, place, 0)

    def _polynomial(self, trace: Trace, terms: Terms) -> None:
        first = True
        by_counts: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for atoms, factor in terms:
            of_run = tuple(a for a in atoms if trace.counts_in((((a,), 1),)))
            by_counts.setdefault(of_run, []).append((tuple(a for a in atoms if a not in of_run), factor))
        for of_run, rest in by_counts.items():
            factors = sum(_product(trace, atoms, factor) for atoms, factor in rest)
            if of_run:
                self._atom(trace, of_run[0])
                for atom in of_run[1:]:
                    self._atom(trace, atom)
                    self._add(_MULTIPLY, 0, -1)
                if type(factors) is not int or factors != 1:
                    self.size(factors)
                    self._add(_MULTIPLY, 0, -1)
            else:
                self.size(factors)
            if not first:
                self._add(_ADD, 0, -1)
            first = False

    def _atom(self, trace: Trace, atom: int) -> None:
        kind, *operands = trace.atoms[atom]
        if kind == "count":
            self._add(_COUNT, self._counts.index(operands[0]), 1)
            return
        for k, terms in enumerate(operands):
            if not _largest(trace, terms) < 1 << 31:
                raise CountError("a size that is divided has more than 31 bits")
            self.size(Size(trace, terms, 0) if any(atoms for atoms, _ in terms) else sum(factor for _, factor in terms))
            if k:
                self._add({"//": _DIVIDE, "%": _REMAINDER, "max": _MAX}[kind], 0, -1)


def _product(trace: Trace, atoms: Iterable[int], factor: int) -> Any:
    for atom in atoms:
        factor = factor * Size(trace, (((atom,), 1),), trace.hints[atom])  # type: ignore[arg-type]
    return factor


def _largest(trace: Trace, terms: Terms) -> Any:
    """A number that a polynomial is never farther from zero than."""
    total: Any = 0
    for atoms, factor in terms:
        product: Any = abs(factor)
        for atom in atoms:
            product = product * _largest_of_atom(trace, atom)
        total = total + product
    return total


def _largest_of_atom(trace: Trace, atom: int) -> Any:
    kind, *operands = trace.atoms[atom]
    if kind == "count":
        return _largest(trace, operands[1])
    if kind in ("//", "%", "max") and trace.counts_in((((atom,), 1),)):
        return sum(_largest(trace, terms) for terms in operands)
    return Size(trace, (((atom,), 1),), trace.hints[atom])  # type: ignore[arg-type]


def code_of(values: Sequence[tuple[int, Any]], counts: Sequence[str], checks: bool = False) -> list[Any]:
    """The programs that calculate sizes. values: the place of each, and the size. checks: they note where one is not 0
    instead.

    Raises CountError for what no program calculates.
    """
    programs = [_Program(counts) for _ in values]
    for program, (place, value) in zip(programs, values, strict=True):
        program.size(value)
        program.end(_CHECK if checks else _STORE, place)
    code: list[Any] = [len(programs)]
    at = 1 + len(programs)
    for program in programs:
        code.append(at)
        at += len(program.words)
    return [*code, *(word for program in programs for word in program.words)]


def sizes_kernel(out: TensorType, programs: int, counts: Sequence[str], checks: bool = False) -> Kernel:
    """What calculates them. It reads `code` and the counts, and writes `y`."""
    reads = {"code": "code", **{f"count{k}": name for k, name in enumerate(counts)}}
    return kernel(
        SIZES,
        [out],
        consts={"COUNTS": len(counts), "STEPS": STEPS, "STACK": STACK},
        groups=-(-programs // MAP_WORKGROUP_SIZE),
        workgroup_size=MAP_WORKGROUP_SIZE,
        raw=True,
        reads=reads,
        writes={"y": 0},
        reports=checks,
    )


def parameters_of_counts(built: Kernel, bindings: Bindings) -> list[tuple[int, Any]]:
    """Which words of a kernel's uniform struct follow from counts, and their sizes."""
    return [(k, value) for k, (_, value) in enumerate(parameters(built, bindings)) if counts_of(value)]


def struct_nbytes(members: int) -> int:
    """Bytes of a uniform struct, up to where the next one may begin."""
    return -(-4 * members // OFFSET_ALIGNMENT) * OFFSET_ALIGNMENT
