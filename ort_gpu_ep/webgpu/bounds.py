"""Bounds checks written into WGSL, where the compiler leaves them out for all shaders of a device or for none
(Dawn)."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ARRAYS = re.compile(r"\bvar<(?:storage|workgroup|private)[^>]*>\s+(\w+)\s*:\s*array<")
_FUNCTIONS = re.compile(r"(?m)^(?=fn )")
_NUMBER = re.compile(r"\s*\d+u?\s*")


def with_bounds(code: str) -> str:
    """The same shader in which each index into an array of the module is at most its last one. Vectors, matrices and
    arrays of functions are left as they are: they lie in registers, and their indices come from no data.
    """
    lengths = dict(_declared(code))
    return (
        "".join(_clamped(part, lengths, _uses(part, lengths)) for part in _FUNCTIONS.split(code)) if lengths else code
    )


def _uses(function: str, names: Iterable[str]) -> re.Pattern[str]:
    """Where a function indexes one of these arrays; a name may stand for something of its own in it."""
    meant = [name for name in names if not re.search(rf"\b(?:var|let)\s+{name}\b|[(,]\s*{name}\s*:", function)]
    return re.compile(rf"(?<![\w.])({'|'.join(meant)})\[" if meant else "(?!)")


def _declared(code: str) -> list[tuple[str, str]]:
    """Name and last index of each array that is declared, as expressions of WGSL."""
    declared = []
    for match in _ARRAYS.finditer(code):
        element = code[match.end() : _end(code, match.end(), "<", ">") - 1]
        cut = _last_comma(element)
        declared.append(
            (match[1], f"arrayLength(&{match[1]}) - 1u" if cut < 0 else f"u32({element[cut + 1 :].strip()}) - 1u")
        )
    return declared


def _clamped(code: str, lengths: dict[str, str], uses: re.Pattern[str]) -> str:
    parts, done = [], 0
    while match := uses.search(code, done):
        end = _end(code, match.end(), "[", "]")
        index = code[match.end() : end - 1]
        parts.append(code[done : match.end()])
        inner = _clamped(index, lengths, uses)
        parts.append(f"{index}]" if _NUMBER.fullmatch(index) else f"min(u32({inner}), {lengths[match[1]]})]")
        done = end
    return "".join((*parts, code[done:]))


def _end(code: str, start: int, opening: str, closing: str) -> int:
    """Behind the bracket that closes what was opened just before `start`."""
    depth = 1
    for place in range(start, len(code)):
        depth += (code[place] == opening) - (code[place] == closing)
        if not depth:
            return place + 1
    raise ValueError(f"WGSL: {closing!r} is missing after {code[max(0, start - 40) : start]!r}")


def _last_comma(element: str) -> int:
    """Where the length of `array<element, length>` begins; -1 without one."""
    depth, last = 0, -1
    for place, letter in enumerate(element):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            last = place
    return last
