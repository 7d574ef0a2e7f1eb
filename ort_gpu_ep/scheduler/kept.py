"""A template as JSON values, and back: what runtime/known_plans.py keeps on disk. What is read is checked: anything may
be there."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ort_gpu_ep.codec import Codec
from ort_gpu_ep.errors import GpuEpError
from ort_gpu_ep.ir import symbolic
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.symbolic import Real, Size, Terms, Trace
from ort_gpu_ep.ir.types import BY_NAME, DType, TensorType
from ort_gpu_ep.kernels import arithmetic
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.scheduler.plan import Copy, Kind, Plan
from ort_gpu_ep.scheduler.template import Template, range_of
from ort_gpu_ep.scheduler.verify import violations
from ort_gpu_ep.shaders.composer import is_body

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {**symbolic.FUNCTIONS, **arithmetic.FUNCTIONS}
"""What `symbolic.derived` may have been called with in a plan that is kept; a function of one row alone has no name in
a file."""

_NAMES = {function: name for name, function in _FUNCTIONS.items()}

_RELATIONS = ("==", "<")

MAX_ATOMS = 1 << 14


def _dtype(name: str) -> DType:
    if name not in BY_NAME:
        raise ValueError(f"got {name[:40]!r}, expected an element type")
    return BY_NAME[name]


CODEC = Codec(Plan, {DType: (str, _dtype)})


def to_data(template: Template) -> dict[str, Any]:
    """Raises TypeError, where a size of a run follows from a function that has no name in a file."""
    trace = template.trace
    return {
        "atoms": [_atom(definition) for definition in trace.atoms],
        "hints": trace.hints,
        "guards": [[terms, relation, answer] for (terms, relation), answer in trace.guards.items()],
        "rows": CODEC.encode(template.plan, _symbol),
    }


def from_data(
    data: Mapping[str, Any], types: Sequence[TensorType], limits: Limits, values: Mapping[int, Array]
) -> Template:
    """The template for inputs of these types. Raises ValueError, LookupError, TypeError for what is no legal plan for
    these."""
    ranges = [(0, symbolic.LARGEST_DIMENSION)] * sum(t.rank for t in types)
    for index in sorted(values):
        ranges += [range_of(values[index])] * values[index].size if values[index].dtype.kind in "iu" else []
    trace = _trace(data, ranges)
    plan = CODEC.decode(Plan, data["rows"], lambda said: _made(said, trace))
    _check(plan)
    if not {definition[1] for definition in trace.atoms if definition[0] == "count"} <= {
        name for name, nbytes in plan.kept if nbytes >= 4
    }:
        raise ValueError("nothing in the plan finds what a size follows from")
    try:
        template = Template(plan, trace, limits, values)
        filled = template.fill(types, values)
        if filled is None or filled.inputs != tuple(types):
            raise ValueError("the plan is for other inputs")
        wrong = violations(template.at(filled))
    except (GpuEpError, struct.error, ArithmeticError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if wrong:
        raise ValueError(f"it is no legal plan: {wrong[0]}")
    grids = [
        grid
        for grid in (*filled.groups, *(step.groups for step in (*plan.prologue, *plan.inverses)))
        if grid is not None
    ]
    if not all(0 <= count <= limits.max_groups_per_dimension for grid in grids for count in grid):
        raise ValueError(f"more than {limits.max_groups_per_dimension} workgroups in a row")
    return template


def _check(plan: Plan) -> None:
    """Raises ValueError for places that are not there, and bodies of shaders that are none."""
    most = {Kind.INPUT: len(plan.inputs), Kind.OUTPUT: len(plan.outputs), Kind.SLOT: len(plan.slots)}
    names = {
        Kind.WEIGHT: {*plan.weights},
        Kind.CONSTANT: {c.name for c in plan.constants},
        Kind.KEPT: {name for name, _ in plan.kept},
    }
    places = [plan.dense]
    for step in (*plan.steps, *plan.prologue, *plan.inverses, *(step for _, step in plan.halved)):
        places.append(
            (step.source, step.target) if isinstance(step, Copy) else (*(t.place for t in step.tensors), *step.awaited)
        )
        for kernel in () if isinstance(step, Copy) else (step.kernel, *(inner for _, inner in step.kernel.inlined)):
            if not is_body(kernel.shader):
                raise ValueError(f"got shader {kernel.shader[:60]!r}, expected a body of this package")
    for place in (p for row in places for p in row):
        if not 0 <= place.index < most.get(place.kind, 1) or place.name not in names.get(place.kind, {place.name}):
            raise ValueError(f"{place} is no place of the plan")
    if any(i not in range(most[Kind.INPUT]) or o not in range(most[Kind.OUTPUT]) for i, o in plan.in_place):
        raise ValueError(f"in place: {plan.in_place} are no inputs and outputs of the plan")


# ---- sizes of a run


def _symbol(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Size):
        return {"size": value.terms, "hint": value.hint}
    return {"real": value.atom} if isinstance(value, Real) else None


def _made(said: Mapping[str, Any], trace: Trace) -> Size | Real:
    if [*said] == ["real"]:
        return Real(trace, _index(said["real"], len(trace.atoms)), float(trace.hints[said["real"]]))
    if [*said] != ["size", "hint"]:
        raise ValueError(f"got {str(said)[:60]}, expected a size of a run")
    return Size(trace, _terms(said["size"], len(trace.atoms)), _integer(said["hint"]))


def _atom(definition: tuple[Any, ...]) -> list[Any]:
    if definition[0] != "call":
        return list(definition)
    name = _NAMES.get(definition[1])
    if name is None or any(how == "is" and type(value) not in (int, float) for how, value in definition[2:]):
        raise TypeError(f"a size of a run follows from {definition[1]!r}")
    return ["call", name, *definition[2:]]


def _trace(data: Mapping[str, Any], ranges: Sequence[tuple[int, int]]) -> Trace:
    """As planning left it: what its guards imply follows from them, in their order. ranges: of the numbers that a run
    brings."""
    trace, atoms, hints = Trace(), data["atoms"], data["hints"]
    if type(atoms) is not list or type(hints) is not list or len(atoms) != len(hints) or len(atoms) > MAX_ATOMS:
        raise ValueError(f"got {str(atoms)[:60]}, expected a list of at most {MAX_ATOMS} atoms, and their values")
    for definition, hint in zip(atoms, hints, strict=True):
        if type(hint) not in (int, float):
            raise ValueError(f"got {str(hint)[:60]}, expected a number")
        copy = _definition(definition, len(trace.atoms), len(ranges))
        if trace.add(copy, hint) != len(trace.atoms) - 1:
            raise ValueError(f"got atom {str(definition)[:60]} twice")
        if copy[0] == "symbol":
            trace.symbol(copy[1], hint, ranges[copy[1]])
    for terms, relation, answer in data["guards"]:
        if relation not in _RELATIONS or type(answer) is not bool:
            raise ValueError(f"got {str((relation, answer))[:60]}, expected a relation and its answer")
        polynomial = _terms(terms, len(trace.atoms))
        if not any(atoms for atoms, _ in polynomial):
            raise ValueError(f"got {str(terms)[:60]}, expected a guard on a size")
        trace.keep(polynomial, relation, answer)
    return trace


def _definition(said: Any, count: int, numbers: int) -> tuple[Any, ...]:
    """Of an atom. count: of those before it, which alone it may follow from."""
    kind, *rest = said
    if kind == "symbol" and len(rest) == 1:
        return kind, _index(rest[0], numbers)
    if kind == "count" and len(rest) == 2 and type(rest[0]) is str:
        return kind, rest[0], _terms(rest[1], count)
    if (kind in ("//", "%") and len(rest) == 2) or (kind == "max" and rest):
        return (kind, *(_terms(terms, count) for terms in rest))
    if kind == "call" and rest and rest[0] in _FUNCTIONS:
        return (kind, _FUNCTIONS[rest[0]], *(_argument(argument, count) for argument in rest[1:]))
    raise ValueError(f"got {str(said)[:60]}, expected an atom")


def _argument(said: Any, count: int) -> tuple[str, Any]:
    how, value = said
    if how == "terms":
        return how, _terms(value, count)
    if how == "real":
        return how, _index(value, count)
    if how != "is" or type(value) not in (int, float):
        raise ValueError(f"got {str(said)[:60]}, expected an argument")
    return how, value


def _terms(said: Any, count: int) -> Terms:
    return tuple((tuple(_index(atom, count) for atom in atoms), _integer(factor)) for atoms, factor in said)


def _integer(said: Any) -> int:
    if type(said) is not int:
        raise ValueError(f"got {str(said)[:60]}, expected an integer")
    return said


def _index(said: Any, count: int) -> int:
    if type(said) is not int or not 0 <= said < count:
        raise ValueError(f"got {str(said)[:60]}, expected a number below {count}")
    return said
