"""Frozen dataclasses as plain JSON values, and back: by the annotations of their fields, and only of classes that these
name.

Every dataclass is a row, [number of the class, field, ...], behind the rows that it refers to; equal ones share a row.
What is read is checked against the annotations: nothing but these classes, tuples, strings, bytes and numbers can come
of it, whatever the file holds.
"""

from __future__ import annotations

import base64
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

T = TypeVar("T")

MAX_ROWS = 1 << 18
"""That are read. A plan of 400 dispatches has some 3,000."""

Encode: TypeAlias = "Callable[[Any, _Rows], Any]"
Decode: TypeAlias = "Callable[[Any, _Read], Any]"

_NUMBERS = (int, float, bool)

_LEAVES = {int, float, bool, str, bytes, type(None), Any, Ellipsis}
"""Annotations that name no dataclass."""


class _Form(NamedTuple):
    """How a value is written and read. fits: whether a value has this form.

    writes, reads: types of values that stand in a file as they are: most do, and need neither encode nor decode.
    """

    fits: Callable[[Any], bool]
    encode: Encode
    decode: Decode
    writes: frozenset[type] = frozenset()
    reads: frozenset[type] = frozenset()


class _Rows:
    """What is written. symbol: a value that stands in a number's place, as a JSON object; None for any other value."""

    def __init__(self, symbol: Callable[[Any], dict[str, Any] | None]) -> None:
        self.rows, self.symbol = list[list[Any]](), symbol
        self._known: dict[str, int] = {}

    def place(self, row: list[Any]) -> int:
        text = json.dumps(row)
        if text not in self._known:
            self._known[text] = len(self.rows)
            self.rows.append(row)
        return self._known[text]


class _Read:
    """What is read. made: of each row before. symbol: what a JSON object in a number's place stands for; raises
    ValueError."""

    def __init__(self, symbol: Callable[[dict[str, Any]], Any]) -> None:
        self.made, self.symbol = list[Any](), symbol


def _no_symbol(value: Any) -> None:
    return None


def _refused(value: Any) -> Any:
    raise ValueError(f"got {str(value)[:60]}, expected a number")


class Codec:
    """For a class, and those that the annotations of its fields name. named: class -> (name of a value, value of a
    name), for classes of which there is one value of each name.
    """

    def __init__(self, root: type, named: Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]]) -> None:
        self._named, self._classes = dict(named), list[type]()
        self._find(root)
        self._number = {kind: k for k, kind in enumerate(self._classes)}
        self._fields: dict[type, list[tuple[str, _Form]]] = {}
        self._forms: dict[Any, _Form] = {}

    def _find(self, hint: Any) -> None:
        """Notes the dataclasses of an annotation."""
        for part in get_args(hint):
            if part not in _LEAVES:
                self._find(part)
        if is_dataclass(hint) and isinstance(hint, type) and hint not in self._named and hint not in self._classes:
            self._classes.append(hint)
            hints = typing.get_type_hints(hint)
            for f in fields(hint):
                if hints[f.name] not in _LEAVES:
                    self._find(hints[f.name])

    def encode(self, value: Any, symbol: Callable[[Any], dict[str, Any] | None] = _no_symbol) -> list[list[Any]]:
        """The rows; the last one is the value. Raises TypeError for what is not as the annotations say, ValueError for
        NaN as a field."""
        rows = _Rows(symbol)
        row = self._row(value, type(value), rows)
        rows.rows.append(row)
        return rows.rows

    def decode(self, kind: type[T], rows: Any, symbol: Callable[[dict[str, Any]], Any] = _refused) -> T:
        """The value of `kind` in the last row. Raises ValueError for what no `encode` gives."""
        if type(rows) is not list or not 0 < len(rows) <= MAX_ROWS:
            raise ValueError(f"got {type(rows).__name__}, expected a list of at most {MAX_ROWS} rows")
        read = _Read(symbol)
        for row in rows:
            if type(row) is not list or not row or type(row[0]) is not int or not 0 <= row[0] < len(self._classes):
                raise ValueError(f"row {len(read.made)}: got {str(row)[:60]}, expected a class and its fields")
            target = self._classes[row[0]]
            parts = self._of(target)
            if len(row) != len(parts) + 1:
                raise ValueError(
                    f"row {len(read.made)}: got {len(row) - 1} fields, expected the {len(parts)} of {target.__name__}"
                )
            read.made.append(
                target(
                    *[
                        raw if type(raw) in form.reads else form.decode(raw, read)
                        for (_, form), raw in zip(parts, row[1:], strict=True)
                    ]
                )
            )
        if type(read.made[-1]) is not kind:
            raise ValueError(f"the last row is a {type(read.made[-1]).__name__}, expected {kind.__name__}")
        return read.made[-1]

    def _row(self, value: Any, kind: type, rows: _Rows) -> list[Any]:
        if type(value) is not kind or kind not in self._number:
            raise TypeError(
                f"got {type(value).__name__}, expected one of {', '.join(c.__name__ for c in self._classes)}"
            )
        values = [(getattr(value, name), form) for name, form in self._of(type(value))]
        return [
            self._number[type(value)],
            *[v if type(v) in form.writes else form.encode(v, rows) for v, form in values],
        ]

    def _of(self, kind: type) -> list[tuple[str, _Form]]:
        """How each field is written and read."""
        if kind not in self._fields:
            hints = typing.get_type_hints(kind)
            self._fields[kind] = [(f.name, self._form(hints[f.name])) for f in fields(kind) if f.init]
        return self._fields[kind]

    def _form(self, hint: Any) -> _Form:
        form = self._forms.get(hint)
        if form is None:
            is_union = get_origin(hint) in (typing.Union, types.UnionType)
            form = self._forms[hint] = (
                _union([self._form(h) for h in get_args(hint)]) if is_union else self._form_of_one(hint)
            )
        return form

    def _form_of_one(self, hint: Any) -> _Form:
        if hint is Any or hint in _NUMBERS:
            return _number_form(_NUMBERS if hint is Any else (int, float) if hint is float else (hint,))
        if hint in (str, type(None)):
            return _plain_form(hint)
        if hint is bytes:
            return _Form(
                lambda v: type(v) is bytes,
                lambda v, rows: base64.b64encode(_of_type(v, bytes)).decode(),
                lambda raw, read: base64.b64decode(_of_type(raw, str), validate=True),
            )
        if hint in self._named:
            name, of_name = self._named[hint]
            return _Form(
                lambda v: type(v) is hint,
                lambda v, rows: name(_of_type(v, hint)),
                lambda raw, read: of_name(_of_type(raw, str)),
            )
        if hint in self._number:
            return _Form(
                lambda v: type(v) is hint,
                lambda v, rows: rows.place(self._row(v, hint, rows)),
                lambda raw, read: _referred(raw, read, hint),
            )
        if get_origin(hint) is Literal:
            return _chosen_form(get_args(hint), lambda raw: raw)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _chosen_form(tuple(hint), hint)
        if get_origin(hint) is tuple:
            members = get_args(hint)
            if len(members) == 2 and members[1] is Ellipsis:
                return _row_form(self._form(members[0]), self._members(members[0]))
            return _tuple_form([self._form(m) for m in members])
        raise TypeError(f"an annotation {hint} has no form in a file")

    def _members(self, hint: Any) -> list[_Form]:
        """Of a tuple of a fixed length; of anything else none."""
        members = get_args(hint) if get_origin(hint) is tuple else ()
        return [self._form(m) for m in members] if Ellipsis not in members else []


def _union(members: Sequence[_Form]) -> _Form:
    def encode(value: Any, rows: _Rows) -> Any:
        for form in members:
            if form.fits(value) or (rows.symbol(value) is not None):
                return form.encode(value, rows)
        raise TypeError(f"got {type(value).__name__}, which is none of its field's types")

    def decode(raw: Any, read: _Read) -> Any:
        for form in members:
            try:
                return form.decode(raw, read)
            except ValueError:
                continue
        raise ValueError(f"got {str(raw)[:60]}, which is none of its field's types")

    def as_they_are(kinds: Sequence[frozenset[type]]) -> frozenset[type]:
        """Nothing but None where some are written otherwise: a number may be a row's, a text a name."""
        every = frozenset[type]().union(*kinds)
        return every if all(kinds) else every & {type(None)}

    return _Form(
        lambda v: any(form.fits(v) for form in members),
        encode,
        decode,
        as_they_are([form.writes for form in members]),
        as_they_are([form.reads for form in members]),
    )


def _row_form(form: _Form, members: Sequence[_Form]) -> _Form:
    """Any number of values of one form. members: of each of them, where it is a tuple; one whose values stand there as
    they are is taken as a whole.
    """
    _, encode_one, decode_one, writes, reads = form
    written, legible = (
        {*product(*kinds)} if kinds and all(kinds) else set[Any]()
        for kinds in ([m.writes for m in members], [m.reads for m in members])
    )

    def encode(value: Any, rows: _Rows) -> Any:
        if type(value) is not tuple:
            raise TypeError(f"got {type(value).__name__}, expected a tuple")
        if writes.issuperset(map(type, value)):
            return list(value)
        return [list(v) if type(v) is tuple and tuple(map(type, v)) in written else encode_one(v, rows) for v in value]

    def decode(raw: Any, read: _Read) -> Any:
        if type(raw) is list and reads.issuperset(map(type, raw)):
            return tuple(raw)
        return tuple(
            [
                tuple(v) if type(v) is list and tuple(map(type, v)) in legible else decode_one(v, read)
                for v in _of_type(raw, list)
            ]
        )

    return _Form(lambda v: type(v) is tuple, encode, decode)


def _tuple_form(forms: Sequence[_Form]) -> _Form:
    """A tuple of a fixed length."""

    def pairs(values: Any) -> Any:
        if len(values) != len(forms):
            raise ValueError(f"got {len(values)} values, expected {len(forms)}")
        return zip(forms, values, strict=True)

    def encode(value: Any, rows: _Rows) -> Any:
        return [v if type(v) in form.writes else form.encode(v, rows) for form, v in pairs(_of_type(value, tuple))]

    def decode(raw: Any, read: _Read) -> Any:
        return tuple([v if type(v) in form.reads else form.decode(v, read) for form, v in pairs(_of_type(raw, list))])

    return _Form(lambda v: type(v) is tuple, encode, decode)


def _number_form(kinds: tuple[type, ...]) -> _Form:
    """A number keeps its type; one that is not finite, which JSON lacks, is written as text."""

    def encode(value: Any, rows: _Rows) -> Any:
        symbol = rows.symbol(value)
        if symbol is not None:
            return symbol
        if type(value) not in kinds:
            raise TypeError(f"got {type(value).__name__}, expected {' or '.join(k.__name__ for k in kinds)}")
        return value if type(value) is not float or math.isfinite(value) else {"float": repr(value)}

    def decode(raw: Any, read: _Read) -> Any:
        if type(raw) in kinds:
            return raw
        if type(raw) is dict:
            if float in kinds and raw in _UNBOUNDED:
                return float(raw["float"])
            return read.symbol(raw)
        return _refused(raw)

    return _Form(lambda v: type(v) in kinds, encode, decode, frozenset(kinds) - {float}, frozenset(kinds))


_UNBOUNDED = [{"float": text} for text in ("inf", "-inf", "nan")]


def _plain_form(kind: type) -> _Form:
    def encode(value: Any, rows: _Rows) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"got {type(value).__name__}, expected {kind.__name__}")
        return str(value) if kind is str else None

    return _Form(
        lambda v: isinstance(v, kind),
        encode,
        lambda raw, read: _of_type(raw, kind),
        frozenset({kind}),
        frozenset({kind}),
    )


def _chosen_form(values: Sequence[Any], of_raw: Callable[[Any], Any]) -> _Form:
    """One of a few values, each of which is a text."""

    def encode(value: Any, rows: _Rows) -> Any:
        if value not in values:
            raise TypeError(f"got {value!r}, expected one of {values}")
        return str(value)

    def decode(raw: Any, read: _Read) -> Any:
        if type(raw) is not str or raw not in values:
            raise ValueError(f"got {str(raw)[:60]}, expected one of {values}")
        return of_raw(raw)

    return _Form(lambda v: v in values, encode, decode)


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"got {str(value)[:60]}, expected {kind.__name__}")
    return value


def _referred(raw: Any, read: _Read, kind: type) -> Any:
    if type(raw) is not int or not 0 <= raw < len(read.made) or type(read.made[raw]) is not kind:
        raise ValueError(f"got {str(raw)[:60]}, expected an earlier row of {kind.__name__}")
    return read.made[raw]
