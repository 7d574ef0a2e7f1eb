"""Symbolic sizes that are known only in a run: arithmetic on them is recorded, so that one plan serves every size.

A builder is written for plain ints and never told. It gets `Size` objects, which know the value of the run that is
being planned (the hint) and the formula that gives it; what it computes from them are formulas, too. A comparison
answers for the hint and is kept as a guard: the plan holds for all sizes that answer every guard alike. Whatever needs
a number (`int`, `range`, an index, a hash) gets the hint and guards that value, so that a builder can be slower than it
need be, but not wrong. `hint` looks without a guard: for choices that any answer to is right.

A count is a size that a kernel finds during the run (of the elements that are not zero, say), of which only a bound is
known before. Its hint is the bound. No guard can hold it: a comparison is answered if every count up to the bound
answers it alike, and with `False` if it asks for equality (is it 1, is it divisible by 4), since what is written for
the general case holds for each. Anything else raises CountError, also what needs a number. Source of the idea:
PyTorch's symbolic shapes (torch.fx.experimental.symbolic_shapes), reduced to what plans need.
"""

from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, cast

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError

Terms: TypeAlias = tuple[tuple[tuple[int, ...], int], ...]
"""A polynomial in normal form: (sorted atoms of a monomial, coefficient), sorted; () is zero."""

_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "<": operator.lt}

LARGEST_DIMENSION = (1 << 32) - 1
"""No dimension is larger: kernels count elements in 32 bits."""

Range: TypeAlias = tuple[int | float, int | float]
"""The least and the largest number that something can be; infinite where nothing is known."""

_ANY_NUMBER: Range = (-math.inf, math.inf)


class CountError(UnsupportedNodeError):
    """A builder needs to know more of a count than its bound."""

    def __init__(self, reason: str) -> None:
        super().__init__(Code.DYNAMIC_SHAPE, reason)


class Trace:
    """The atoms of one planning (symbols, and operations that are no polynomial) and its guards.

    guards: (polynomial, relation to zero) -> the answer that was given. closed: planning is over, and no guard can be
    added. exact: what is asked now is a value of the model, so equality of a count is not answered unless it holds for
    each, or for none.
    """

    def __init__(self) -> None:
        self.atoms: list[tuple[Any, ...]] = []
        self.hints: list[int | float] = []
        self.guards: dict[tuple[Terms, str], bool] = {}
        self.closed = self.exact = False
        # atom -> the counts that it is made of; empty while there is no count
        self._of_counts: dict[int, frozenset[str]] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        self._ranges: dict[int, Range] = {}  # of atoms, as far as they were asked for
        self._equal: dict[int, Terms] = {}  # atom -> what it equals by a guard
        self._implied: dict[tuple[Terms, str], bool] = {}  # what guards say in terms of those

    def symbol(self, place: int, hint: int, within: Range = (0, LARGEST_DIMENSION)) -> int:
        """The number at `place` of the tuple that a formula (formula.py) is called with. (A Size: typed as what it
        stands in for.)"""
        atom = self.add(("symbol", place), hint)
        self._ranges[atom] = within
        return cast(int, Size(self, (((atom,), 1),), hint))

    def count(self, name: str, most: int) -> int:
        """A size that a run writes to the place `name`, at most so much. (A Size: typed as what it stands in for.)"""
        terms, bound = _terms(most), hint(most)
        if at_most(most) == 0:
            return 0
        if self.trend(terms) not in (0, 1):
            raise CountError(f"nothing bounds {name!r}: {most} does not grow with the counts in it")
        return cast(int, Size(self, (((self.add(("count", name, terms), bound),), 1),), bound))

    def add(self, definition: tuple[Any, ...], hint: int | float) -> int:
        """The number of an atom with this definition, which is made if there is none."""
        # 1, 1.0 and True are equal, as 0.0 and -0.0
        key = definition if definition[0] != "call" else (definition, repr(definition[2:]))
        atom = self._known.get(key)
        if atom is None:
            atom = self._known[key] = len(self.atoms)
            self.atoms.append(definition)
            self.hints.append(hint)
            if definition[0] == "count":
                self._of_counts[atom] = frozenset((definition[1],))
        return atom

    def size(self, definition: tuple[Any, ...], hint: int) -> Any:
        return Size(self, (((self.add(definition, hint),), 1),), hint)

    def real(self, definition: tuple[Any, ...], hint: float) -> Any:
        return Real(self, self.add(definition, hint), hint)

    def answer(self, terms: Terms, relation: str, hint: int) -> bool:
        """Whether the polynomial, whose value now is `hint`, is in that relation to zero; kept as a guard unless it
        always is, or never."""
        holds = _RELATIONS[relation](hint, 0)
        low, high = self.range_of(terms)
        if high < 0 or low > 0 or low == high or (relation == "<" and low >= 0):
            return holds
        if self.counts_in(terms):
            return self._answer_for_all(terms, relation)
        if (terms, relation) not in self.guards and (terms, relation) not in self._implied:
            if self.closed:
                raise InternalError(f"{text_of(terms)} {relation} 0 is asked after planning, when no guard can be kept")
            self.keep(terms, relation, holds)
        return holds

    def _answer_for_all(self, terms: Terms, relation: str) -> bool:
        """The answer, where it is the same for all counts from none to the most."""
        if relation == "==" and not self.exact:
            return False
        low, high = self._sign(terms)
        if high < 0:
            return relation == "<"
        if low > 0 or (relation == "<" and low >= 0):
            return False
        raise CountError(f"only the run's data tell whether {text_of(terms)} {relation} 0")

    def _sign(self, terms: Terms) -> Range:
        """Of a polynomial for all counts: (1, 1) where it is above zero, (0, 1) where it is not below, (-1, -1) below
        it, else (-1, 1). The two ends are compared as other sizes are.
        """
        trend = self.trend(terms)
        if trend is not None:
            low, high = (self.at(terms, most) for most in ((False, True) if trend >= 0 else (True, False)))
            if high < 0:
                return -1, -1
            if low >= 0:
                return int(low > 0), 1
        factor, others = self._alternatives(terms)
        signs, chosen = [self._sign(other) for other in others], max if factor > 0 else min
        return (chosen(low for low, _ in signs), chosen(high for _, high in signs)) if signs else (-1, 1)

    def _alternatives(self, terms: Terms) -> tuple[int, list[Terms]]:
        """The polynomials of which this is the largest, or with a factor below zero the smallest: with each operand of
        a maximum for it. None where there is no maximum.
        """
        for atoms, factor in terms:
            if len(atoms) == 1 and self.atoms[atoms[0]][0] == "max" and self._counts_of(atoms[0]):
                rest = Size(self, terms, 0) - Size(self, ((atoms, factor),), 0)
                return factor, [_terms(rest + factor * Size(self, operand, 0)) for operand in self.atoms[atoms[0]][1:]]
        return 1, []

    def counts_in(self, terms: Terms) -> frozenset[str]:
        """The names of the counts that a polynomial depends on."""
        if not self._of_counts:
            return frozenset()
        return frozenset().union(*(self._counts_of(atom) for atoms, _ in terms for atom in atoms))

    @property
    def has_counts(self) -> bool:
        return bool(self._of_counts)

    def _counts_of(self, atom: int) -> frozenset[str]:
        names = self._of_counts.get(atom)
        if names is None:
            names = self._of_counts[atom] = frozenset().union(*map(self._counts_of, atoms_in(self.atoms[atom])))
        return names

    def at(self, terms: Terms, most: bool) -> Any:
        """The polynomial where every count is as large as it can be, or zero."""
        return sum(math.prod([self._atom_at(atom, most) for atom in atoms], start=factor) for atoms, factor in terms)

    def _atom_at(self, atom: int, most: bool) -> Any:
        if not self._counts_of(atom):
            return Size(self, (((atom,), 1),), cast(int, self.hints[atom]))
        kind, *operands = self.atoms[atom]
        if kind == "count":
            return self.at(operands[1], True) if most else 0
        values = [self.at(terms, most) for terms in operands]
        return largest(*values) if kind == "max" else values[0] // values[1] if kind == "//" else values[0] % values[1]

    def trend(self, terms: Terms) -> int | None:
        """1 where a polynomial grows with the counts in it, or stays, -1 where it falls, 0 where there are none; None:
        nothing is known."""
        trends = {self._trend_of(atoms, factor) for atoms, factor in terms if self.counts_in(((atoms, factor),))}
        if len(trends) == 2:  # a minimum of what grows does, whatever its terms do
            trends = {self.trend(other) for other in self._alternatives(terms)[1]} - {0} or {None}
        return 0 if not trends else trends.pop() if len(trends) == 1 else None

    def _trend_of(self, atoms: tuple[int, ...], factor: int) -> int | None:
        moving, sign = [atom for atom in atoms if self._counts_of(atom)], 1 if factor > 0 else -1
        for low, high in (self._range(atom) for atom in atoms if atom not in moving):
            if low < 0 < high:
                return None
            sign = -sign if low < 0 else sign
        if len(moving) == 1:
            trend = self._trend_of_atom(moving[0])
            return None if trend is None else sign * trend
        for atom in moving:  # all away from zero, or nothing is known
            (low, high), trend = self._range(atom), self._trend_of_atom(atom)
            if not (low >= 0 and trend == 1) and not (high <= 0 and trend == -1):
                return None
            sign = sign if low >= 0 else -sign
        return sign

    def _trend_of_atom(self, atom: int) -> int | None:
        if not self._counts_of(atom):
            return 0
        kind, *operands = self.atoms[atom]
        if kind == "count":
            return 1
        trends = [self.trend(terms) for terms in operands]
        if kind == "max":
            moving = {t for t in trends if t != 0}
            return moving.pop() if len(moving) == 1 else None
        return trends[0] if kind == "//" and trends[1] == 0 and self.range_of(operands[1])[0] >= 0 else None

    def range_of(self, terms: Terms) -> Range:
        """Between which numbers a polynomial is, whatever a run brings."""
        low: int | float = 0
        high: int | float = 0
        for atoms, factor in terms:
            ends: Range = (factor, factor)
            for atom in atoms:
                products = [_bounded_product(a, b) for a in ends for b in self._range(atom)]
                ends = min(products), max(products)
            low, high = low + ends[0], high + ends[1]
        return low, high

    def _range(self, atom: int) -> Range:
        if atom not in self._ranges:
            self._ranges[atom] = self._range_by(self.atoms[atom])
        return self._ranges[atom]

    def _range_by(self, definition: tuple[Any, ...]) -> Range:
        kind, *operands = definition
        if kind == "count":
            return 0, self.range_of(operands[1])[1]
        if kind not in ("max", "//", "%"):
            return _ANY_NUMBER
        ranges = [self.range_of(terms) for terms in operands]
        if kind == "max":
            return max(low for low, _ in ranges), max(high for _, high in ranges)
        (low, high), (least, most) = ranges
        if kind == "//":  # nearer to zero than the dividend, or at -1
            return (min(low, 0), max(high, 0)) if least >= 0 else (min(low, -high, -1), max(-low, high))
        return (0, most - 1) if least > 0 else _ANY_NUMBER if least < 0 else (0, most)

    def keep(self, terms: Terms, relation: str, answer: bool) -> None:
        """A guard: the plan holds where this polynomial is in that relation to zero, or with the answer False, where it
        is not."""
        self.guards[terms, relation] = answer
        if answer and relation == "==":
            self._learn(terms)

    def symbols_in(self, terms: Terms) -> list[int]:
        """The places of the symbols that a polynomial is made of."""
        symbols, seen, queue = list[int](), set[int](), [a for atoms, _ in terms for a in atoms]
        while queue:
            atom = queue.pop()
            if atom not in seen:
                seen.add(atom)
                definition = self.atoms[atom]
                symbols += [definition[1]] if definition[0] == "symbol" else ()
                queue += atoms_in(definition)
        return symbols

    def _learn(self, terms: Terms) -> None:
        """From a polynomial that is zero: the last atom that stands in it alone is what the others make it."""
        for (*atoms,), factor in reversed(terms):
            rest = tuple((its, other) for its, other in terms if list(its) != atoms)
            if (
                len(atoms) == 1
                and not any(atoms[0] in its for its, _ in rest)
                and all(other % factor == 0 for _, other in rest)
            ):
                self._equal[atoms[0]] = self.resolved(tuple((its, -other // factor) for its, other in rest))
                for atom, value in list(self._equal.items()):
                    self._equal[atom] = self.resolved(value)
                # a kernel made before may be asked for again, in the new terms
                for (before, relation), answer in self.guards.items():
                    self._implied[self.resolved(before), relation] = answer
                return

    def resolved(self, terms: Terms) -> Terms:
        """The polynomial without atoms of which it is known what they equal."""
        if not any(a in self._equal for atoms, _ in terms for a in atoms):
            return terms
        total: dict[tuple[int, ...], int] = {}
        for atoms, factor in terms:
            product: dict[tuple[int, ...], int] = {(): factor}
            for atom in atoms:
                product = _multiplied(product, dict(self._equal.get(atom, (((atom,), 1),))))
            for its, its_factor in product.items():
                total[its] = total.get(its, 0) + its_factor
        return _normal(total)


def _bounded_product(one: int | float, other: int | float) -> int | float:
    """Of two bounds, of which one may be infinite and the other zero."""
    return one * other if one and other else 0


def _multiplied(one: Mapping[tuple[int, ...], int], other: Mapping[tuple[int, ...], int]) -> dict[tuple[int, ...], int]:
    product: dict[tuple[int, ...], int] = {}
    for mine, factor in one.items():
        for its, other_factor in other.items():
            atoms = tuple(sorted((*mine, *its)))
            product[atoms] = product.get(atoms, 0) + factor * other_factor
    return product


def _normal(terms: Mapping[tuple[int, ...], int]) -> Terms:
    return tuple(sorted((atoms, factor) for atoms, factor in terms.items() if factor))


def atoms_in(definition: tuple[Any, ...]) -> list[int]:
    """The atoms that an atom is made of."""
    kind = definition[0]
    if kind == "symbol":
        return []
    if kind == "call":
        return [
            a
            for how, value in definition[2:]
            for a in ([value] if how == "real" else [x for atoms, _ in value for x in atoms] if how == "terms" else [])
        ]
    return [a for terms in definition[2 if kind == "count" else 1 :] for atoms, _ in terms for a in atoms]


def text_of(terms: Terms) -> str:
    """`2*s0*s1 + 3`; s<k> is atom k."""
    parts = [
        "*".join([*([str(factor)] if factor != 1 or not atoms else []), *(f"s{a}" for a in atoms)])
        for atoms, factor in terms
    ]
    return " + ".join(parts) or "0"


class Size:
    """An integer of a run: a polynomial over the atoms of a trace, and its value in the run that is being planned."""

    __slots__ = ("hint", "terms", "trace")
    __array_ufunc__ = None  # numpy's scalars leave arithmetic with it to it

    def __init__(self, trace: Trace, terms: Terms, hint: int) -> None:
        self.trace, self.terms, self.hint = trace, terms, hint

    def _made(self, terms: Mapping[tuple[int, ...], int], hint: int) -> Any:
        normal = self.trace.resolved(_normal(terms))
        if all(not atoms for atoms, _ in normal):
            return normal[0][1] if normal else 0
        return Size(self.trace, normal, hint)

    def __add__(self, other: Any) -> Any:
        operand = _operand(other)
        if operand is None:
            return derived(operator.add, self, _number(other)) if _is_real(other) else NotImplemented
        terms = dict(self.terms)
        for atoms, factor in operand[0]:
            terms[atoms] = terms.get(atoms, 0) + factor
        return self._made(terms, self.hint + operand[1])

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __sub__(self, other: Any) -> Any:
        return self + -1 * other if _operand(other) is not None or _is_real(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        operand = _operand(other)
        if operand is None:
            return derived(operator.mul, self, _number(other)) if _is_real(other) else NotImplemented
        return self._made(_multiplied(dict(self.terms), dict(operand[0])), self.hint * operand[1])

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _divided(self.trace, self, other, "//", operator.floordiv)

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided(self.trace, other, self, "//", operator.floordiv)

    def __mod__(self, other: Any) -> Any:
        return _divided(self.trace, self, other, "%", operator.mod)

    def __rmod__(self, other: Any) -> Any:
        return _divided(self.trace, other, self, "%", operator.mod)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __truediv__(self, other: Any) -> Any:
        return derived(operator.truediv, self, _number(other))

    def __rtruediv__(self, other: Any) -> Any:
        return derived(operator.truediv, _number(other), self)

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def _compare(self, other: Any, relation: str) -> Any:
        other = _number(other)
        if isinstance(other, float) and not other.is_integer():
            if math.isnan(other) or math.isinf(other):
                return _RELATIONS[relation](self.hint, other)
            return relation == "<" and self._compare(math.floor(other) + 1, "<")
        other = int(other) if isinstance(other, float) else other
        if _operand(other) is None:
            return NotImplemented
        difference = self - other
        if not isinstance(difference, Size):
            return _RELATIONS[relation](difference, 0)
        return self.trace.answer(difference.terms, relation, difference.hint)

    def __eq__(self, other: object) -> Any:
        return self._compare(other, "==")

    def __ne__(self, other: object) -> Any:
        equal = self._compare(other, "==")
        return equal if equal is NotImplemented else not equal

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "<")

    def __ge__(self, other: Any) -> Any:
        less = self._compare(other, "<")
        return less if less is NotImplemented else not less and not _is_nan(other)

    def __gt__(self, other: Any) -> Any:
        other = _number(other)
        return (
            self >= math.floor(other) + 1
            if isinstance(other, float) and math.isfinite(other)
            else _flipped(self, other)
        )

    def __le__(self, other: Any) -> Any:
        greater = self > other or _is_nan(other)
        return greater if greater is NotImplemented else not greater

    def __bool__(self) -> bool:
        return bool(self != 0)

    def pinned(self) -> Any:
        """The size with numbers, guarded, for all in it that is no count."""
        for atom in {atom for atoms, _ in self.terms for atom in atoms if not self.trace.counts_in((((atom,), 1),))}:
            int(Size(self.trace, (((atom,), 1),), cast(int, self.trace.hints[atom])))
        return self + 0

    def __index__(self) -> int:
        """The number, guarded: the plan then holds for this value only."""
        if counts_of(self):
            raise CountError(f"only the run's data tell the number {self}")
        if not self == self.hint:
            raise InternalError(f"{self} is not its own hint {self.hint}")
        return self.hint

    __int__ = __index__

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None else round(int(self), digits)

    def __float__(self) -> float:
        return float(int(self))

    def __hash__(self) -> int:
        return hash(int(self))

    def bit_length(self) -> int:
        return int(self).bit_length()

    def __repr__(self) -> str:
        return f"({text_of(self.terms)} = {self.hint})"

    __str__ = __repr__


class Real:
    """A float of a run, computed from its numbers.

    What is calculated from it is one, too; a comparison answers for the run that is planned, and is kept as a guard.
    """

    __slots__ = ("atom", "hint", "trace")
    __array_ufunc__ = None

    def __init__(self, trace: Trace, atom: int, hint: float) -> None:
        self.trace, self.atom, self.hint = trace, atom, hint

    def __add__(self, other: Any) -> Any:
        return _with_real(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _with_real(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return _with_real(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _with_real(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return _with_real(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _with_real(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _with_real(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _with_real(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _with_real(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _with_real(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Any:
        return _with_real(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Any:
        return _with_real(operator.mod, other, self)

    def __pow__(self, other: Any) -> Any:
        return _with_real(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        return _with_real(operator.pow, other, self)

    def __neg__(self) -> Any:
        return derived(operator.neg, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return derived(abs, self)

    def __floor__(self) -> Any:
        return derived(math.floor, self)

    def __ceil__(self) -> Any:
        return derived(math.ceil, self)

    def __trunc__(self) -> Any:
        return derived(math.trunc, self)

    def __round__(self, digits: int | None = None) -> Any:
        return derived(round, self) if digits is None else derived(round, self, digits)

    def __eq__(self, other: object) -> Any:
        return _answered(equal, self, other)

    def __ne__(self, other: object) -> Any:
        answer = _answered(equal, self, other)
        return answer if answer is NotImplemented else not answer

    def __lt__(self, other: Any) -> Any:
        return _answered(less, self, other)

    def __gt__(self, other: Any) -> Any:
        return _answered(less, other, self)

    def __le__(self, other: Any) -> Any:
        return _answered(less_or_equal, self, other)

    def __ge__(self, other: Any) -> Any:
        return _answered(less_or_equal, other, self)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __float__(self) -> float:
        """The number, guarded: the plan then holds for this value only."""
        if not derived(identical, self, self.hint):
            raise InternalError(f"{self} is not its own hint {self.hint}")
        return self.hint

    def __int__(self) -> int:
        return int(float(self))

    def __hash__(self) -> int:
        return hash(float(self))

    def __repr__(self) -> str:
        return f"(r{self.atom} = {self.hint})"

    __str__ = __repr__


def equal(one: float, other: float) -> int:
    return int(one == other)


def less(one: float, other: float) -> int:
    return int(one < other)


def less_or_equal(one: float, other: float) -> int:
    return int(one <= other)


def identical(one: float, other: float) -> int:
    """Whether they are the same number bit for bit: NaN is NaN, and 0.0 is not -0.0."""
    return int(repr(one) == repr(other))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "neg": operator.neg,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "float": float,
    "==": equal,
    "<": less,
    "<=": less_or_equal,
    "is": identical,
}
"""What numbers of a run are derived by here, by names for files."""


def _is_real(value: object) -> bool:
    """Whether it is a float, of a run or not; numpy's are some, too."""
    return isinstance(value, (float, Real)) or (
        isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)
    )


def _number(value: Any) -> Any:
    """A float of numpy as Python's."""
    return value if isinstance(value, (int, float, Size, Real)) or not _is_real(value) else float(value)


def _is_nan(value: Any) -> bool:
    return not isinstance(value, (int, Size, Real)) and _is_real(value) and math.isnan(value)


def _with_real(function: Callable[..., Any], one: Any, other: Any) -> Any:
    """function(one, other), of which one at least is a Real."""
    if not all(isinstance(v, Size) or _is_real(v) or _operand(v) is not None for v in (one, other)):
        return NotImplemented
    return derived(function, _plain_number(one), _plain_number(other))


def _plain_number(value: Any) -> Any:
    return value if is_symbolic(value) else _number(value) if _is_real(value) else operator.index(value)


def _answered(relation: Callable[[float, float], int], one: Any, other: Any) -> Any:
    """Whether the relation holds in the run that is planned, as a guard."""
    answer = _with_real(relation, one, other)
    return answer if answer is NotImplemented else bool(answer)


def _flipped(one: Size, other: Any) -> Any:
    """one > other, as other - one < 0."""
    if isinstance(other, float):
        return one.hint > other
    if _operand(other) is None:
        return NotImplemented
    difference = other - one
    return one.trace.answer(difference.terms, "<", difference.hint) if isinstance(difference, Size) else difference < 0


def _operand(value: Any) -> tuple[Terms, int] | None:
    """(polynomial, value) of an operand; None for what is no integer."""
    if isinstance(value, Size):
        return value.terms, value.hint
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return (((), number),) if number else (), number


def _divided(trace: Trace, one: Any, other: Any, sign: str, operation: Callable[[int, int], int]) -> Any:
    dividend, divisor = _operand(one), _operand(other)
    if dividend is None or divisor is None:
        return NotImplemented
    if other == 0:  # guarded where it is a size
        raise ZeroDivisionError(f"{one} {sign} {other}")
    dividend, divisor = (trace.resolved(dividend[0]), dividend[1]), (trace.resolved(divisor[0]), divisor[1])
    quotient = _exact(dividend[0], divisor[0])
    if quotient is not None:
        if sign == "%":
            return 0
        return Size(trace, (), 0)._made(dict(quotient), dividend[1] // divisor[1])
    return trace.size((sign, dividend[0], divisor[0]), operation(dividend[1], divisor[1]))


def _exact(dividend: Terms, divisor: Terms) -> Terms | None:
    """The quotient, where the divisor is one monomial that every term contains."""
    if len(divisor) != 1:
        return None
    (divided, factor), quotient = divisor[0], []
    for atoms, mine in dividend:
        rest = list(atoms)
        for atom in divided:
            if atom not in rest:
                return None
            rest.remove(atom)
        if mine % factor:
            return None
        quotient.append((tuple(rest), mine // factor))
    return tuple(quotient)


def is_symbolic(value: object) -> bool:
    return isinstance(value, (Size, Real))


def is_zero(size: Any) -> bool:
    """Whether it is 0, for a builder that has another answer then. Raises CountError for a count that may be."""
    with exactly((size,)):
        return bool(size == 0)


def counts_of(*values: Any) -> frozenset[str]:
    """The names of the counts that sizes depend on."""
    return frozenset().union(*(v.trace.counts_in(v.terms) for v in values if isinstance(v, Size)))


@contextmanager
def exactly(values: Iterable[Any]) -> Iterator[None]:
    """What is asked of these values meanwhile are values of the model, see Trace."""
    trace = next((v.trace for v in values if isinstance(v, (Size, Real))), None)
    if trace is None:
        yield
        return
    trace.exact = True
    try:
        yield
    finally:
        trace.exact = False


def at_most(value: Any) -> Any:
    """A size where every count in it is as large as it can be."""
    return value.trace.at(value.terms, True) if counts_of(value) else value


def hint(value: Any) -> Any:
    """The number in the run that is being planned, without a guard: only for choices that are right whatever the number
    is."""
    return value.hint if isinstance(value, (Size, Real)) else value


def hints(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(hint(v) for v in values)


def plain(text: str) -> str:
    """A sentence about sizes with the numbers of the run at hand in place of formulas: `(s0 = 3)` becomes 3."""
    return re.sub(r"\([^()=]+ = (-?[^()= ]+)\)", r"\1", text)


def same(one: Any, other: Any) -> bool:
    """Whether two sizes are equal for every run; no guard is kept, so False means only that nothing is known."""
    if isinstance(one, Size) or isinstance(other, Size):
        return not is_symbolic(one - other) and one - other == 0
    return bool(one == other)


def largest(*values: Any) -> Any:
    """The largest, without a guard on which one it is."""
    sizes = [v for v in values if isinstance(v, Size)]
    if not sizes:
        return max(values)
    terms = tuple(dict.fromkeys(_terms(v) for v in values))
    return sizes[0] if len(terms) == 1 else sizes[0].trace.size(("max", *terms), max(hint(v) for v in values))


def lesser(one: Any, other: Any) -> Any:
    """The smaller one, guarded; of a count and what may be more or less, calculated in the run."""
    try:
        return min(one, other)
    except CountError:
        return -largest(-one, -other)


def greater(one: Any, other: Any) -> Any:
    """The larger one, as `lesser`."""
    try:
        return max(one, other)
    except CountError:
        return largest(one, other)


def fitted(value: Any, low: int, high: int) -> Any:
    """An integer as an element type holds it that reaches from low to high: modulo its range. Guarded, where a size
    might leave it."""
    if isinstance(value, Size):
        least, most = value.trace.range_of(value.terms)
        if low <= least and most <= high:
            return value
    return value if low <= value <= high else (value - low) % (high - low + 1) + low


def _terms(value: Any) -> Terms:
    operand = _operand(value)
    if operand is None:
        raise InternalError(f"{value!r} is no size")
    return operand[0]


def derived(function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments), computed anew for each run where an argument is a size of it: an int or a float; function
    is pure."""
    trace = next((a.trace for a in arguments if isinstance(a, (Size, Real))), None)
    if trace is None:
        return function(*arguments)
    if counts_of(*arguments):
        raise CountError(f"{function} of a number that only the run's data tell")
    value = function(*hints(arguments))
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InternalError(f"{function} gives {value!r}: an int or a float can be derived")
    key = tuple(
        ("terms", a.terms) if isinstance(a, Size) else ("real", a.atom) if isinstance(a, Real) else ("is", a)
        for a in arguments
    )
    definition = ("call", function, *key)
    return trace.size(definition, value) if isinstance(value, int) else trace.real(definition, value)


_known_fields: dict[type, tuple[str, ...]] = {}


def _fields(kind: type) -> tuple[str, ...]:
    """Of a dataclass whose instances may hold sizes, which a DType's don't; of another type none."""
    if kind not in _known_fields:
        _known_fields[kind] = (
            tuple(f.name for f in fields(kind)) if is_dataclass(kind) and kind.__name__ != "DType" else ()
        )
    return _known_fields[kind]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same data with every Size and Real changed. What holds none of them is not copied."""
    if isinstance(value, (Size, Real)):
        return change(value)
    if isinstance(value, tuple):
        values = [mapped(v, change) for v in value]
        return value if all(map(operator.is_, values, value)) else tuple(values)
    changed = {}
    for name in _fields(type(value)):
        before = getattr(value, name)
        after = mapped(before, change)
        if after is not before:
            changed[name] = after
    return replace(value, **changed) if changed else value
