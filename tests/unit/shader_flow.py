"""Which WGSL bodies index a buffer by what they have read from one: a flow of names through a body's text, coarse but
never too small."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ASSIGNED = re.compile(
    r"\b(?:let|var(?:<\w+>)?|const)\s+(\w+)\s*(?::[^=;]*)?=\s*([^;]*);|\b(\w+)(?:\.\w+|\[[^\]]*\])*\s*(?:[-+*/|&^%]|<<|>>)?=(?!=)\s*([^;{}]*)[;){]"
)
_FUNCTION = re.compile(r"\bfn\s+(\w+)\s*\(([^)]*)\)[^{]*\{")
_BOUND = re.compile(r"\bfor\s*\(\s*var\s+(\w+)[^;]*;([^;]*);|\bwhile\s*\(([^{]*)\)\s*\{")


def _functions(text: str) -> Iterator[tuple[str, list[str], str]]:
    """(name, parameters, body) of each function."""
    for found in _FUNCTION.finditer(text):
        depth, end = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield found[1], [p.split(":")[0].strip() for p in found[2].split(",") if p.strip()], text[found.end() : end - 1]


def _inside(text: str, opened: int) -> str:
    """What stands between the bracket at `opened` and the one that closes it."""
    depth, end = 1, opened + 1
    while depth and end < len(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[end], 0)
        end += 1
    return text[opened + 1 : end - 1]


def _arguments(text: str) -> list[str]:
    parts, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if c == "," and not depth:
            parts.append(text[last:i])
            last = i + 1
    return [*parts, text[last:]]


def _bounded(text: str) -> str:
    """The text without what is clamped: whatever was read, the result is within bounds that were not."""
    while found := re.search(r"\b(?:clamp|min)\(", text):
        inner = _inside(text, found.end() - 1)
        bounds = _arguments(inner)[1:]
        text = text[: found.start()] + f"bounded({','.join(bounds)})" + text[found.end() + len(inner) + 1 :]
    return text


class _Flow:
    """The names that hold something read from a buffer: (function, name), with "" for what the module declares."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"\$\((?:[^()]|\([^()]*\))*\)|\$\w", "", text)  # what a repeated line has for a number
        text = re.sub(r"//[^\n]*|(?m:^#.*$)", "", text)
        text = re.sub(r"(?<=[A-Za-z_])\d+", "", text)  # so that `at$k` and `at0` are one name
        self.text = _bounded(text)
        self.functions = list(_functions(self.text))
        outside = self.text
        for _, _, inner in self.functions:
            outside = outside.replace(inner, "")
        self.shared = set(re.findall(r"\bvar<\w+>\s+(\w+)", outside))
        self.names: set[tuple[str, str]] = set()

    def scope(self, function: str, name: str) -> tuple[str, str]:
        return ("" if name in self.shared else function), name

    def carries(self, function: str, expression: str) -> bool:
        """Whether it reads a buffer, or holds a name, or calls a function, that carries what was read."""
        if re.search(r"\b\w+_(?:at|word|pair)4?\(", expression):
            return True
        words = re.findall(r"(?<![.\w])[A-Za-z_]\w*", expression)
        return any(self.scope(function, word) in self.names or ("", word) in self.names for word in words)

    def solve(self) -> None:
        before = -1
        while len(self.names) != before:
            before = len(self.names)
            for function, _, inner in self.functions:
                self._assignments(function, inner)
                if any(self.carries(function, value) for value in re.findall(r"\breturn\s+([^;]*);", inner)):
                    self.names.add(("", function))
                for name, parameters, _ in self.functions:
                    for call in re.finditer(rf"\b{name}\(", inner):
                        given = _arguments(_inside(inner, call.end() - 1))
                        self.names |= {
                            (name, p)
                            for p, value in zip(parameters, given, strict=False)
                            if self.carries(function, value)
                        }

    def _assignments(self, function: str, inner: str) -> None:
        for found in _ASSIGNED.finditer(inner):
            name, value = (found[1], found[2]) if found[1] else (found[3], found[4])
            if self.carries(function, value):
                self.names.add(self.scope(function, name))
        for found in _BOUND.finditer(inner):
            name, bound = found[1], found[2] or found[3]
            if self.carries(function, bound):
                self.names |= {
                    self.scope(function, n) for n in ([name] if name else re.findall(r"\b[a-z_]\w*\b", bound))
                }

    def used(self) -> list[str]:
        """The places where what was read decides on an index."""
        found = []
        for function, _, inner in self.functions:
            for place in re.finditer(r"\b\w+_at4?(\()|\b\w+_set4?(\()|\b\w+(\[)", inner):
                index = _arguments(_inside(inner, place.end() - 1))[0]
                if self.carries(function, index):
                    found.append(f"{place[0]}{index}")
        return found


def indices_from_data(text: str) -> list[str]:
    """The places in a WGSL body where an index may depend on what was read from a buffer."""
    flow = _Flow(text)
    flow.solve()
    return flow.used()
