"""Rewrites a whole WGSL module around a known fault of a driver: what it computes stays the same, the construct that
fails is gone.

Each rewriting is a workaround of health/workarounds.py by the same name. Those that depend on types read the module
with shaders/expressions.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from ort_gpu_ep.shaders.expressions import Expression, Rules, element_of, rewritten_expressions, width_of

_MAIN = re.compile(r"@workgroup_size\(([^)]*)\)\s*fn main\((.*?)\)\s*\{", re.DOTALL)
_BUILTIN = re.compile(r"@builtin\((\w+)\)\s*(\w+)\s*:\s*[\w<>]+")


def counted_subgroups(text: str) -> str:
    """`num_subgroups` computed: invocations of the workgroup by the size of a subgroup, rounded up."""
    main = _MAIN.search(text)
    names = dict(_BUILTIN.findall(main[2])) if main else {}
    if main is None or "num_subgroups" not in names:
        return text
    size = names.get("subgroup_size", "")
    parameters = [p[0] for p in _BUILTIN.finditer(main[2]) if p[1] != "num_subgroups"]
    if not size:
        size = "whole_subgroup"
        parameters.append(f"@builtin(subgroup_size) {size}: u32")
    invocations = " * ".join(f"u32({part.strip()})" for part in main[1].split(",") if part.strip())
    number = f"let {names['num_subgroups']} = ({invocations} + {size} - 1u) / {size};"
    head = f"@workgroup_size({main[1]})\nfn main({', '.join(parameters)}) {{ {number}"
    return f"{text[: main.start()]}{head}{text[main.end() :]}"


def exchanged_stores(text: str) -> str:
    """Atomic stores as exchanges whose result nobody reads."""
    return re.sub(r"\batomicStore\(", "atomicExchange(", text)


_DOTS = {
    "dot4U8Packed": "fn bytes_dot4U8Packed(a: u32, b: u32) -> u32 {\n"
    "    let x = vec4<u32>(a, a >> 8u, a >> 16u, a >> 24u) & vec4<u32>(255u);\n"
    "    let y = vec4<u32>(b, b >> 8u, b >> 16u, b >> 24u) & vec4<u32>(255u);\n"
    "    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;\n}\n",
    "dot4I8Packed": "fn bytes_dot4I8Packed(a: u32, b: u32) -> i32 {\n"
    "    let x = vec4<i32>(bitcast<vec4<i32>>(vec4<u32>(a << 24u, a << 16u, a << 8u, a)) >> vec4<u32>(24u));\n"
    "    let y = vec4<i32>(bitcast<vec4<i32>>(vec4<u32>(b << 24u, b << 16u, b << 8u, b)) >> vec4<u32>(24u));\n"
    "    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;\n}\n",
}


def plain_dots(text: str) -> str:
    """Products of four bytes by shifts and multiplications, without the instruction for them."""
    for name, function in _DOTS.items():
        changed = re.sub(rf"\b{name}\(", f"bytes_{name}(", text)
        text = changed + function if changed != text else text
    return text


_ZERO, _KNOWN_ZERO = "opaque_zero", ("num_workgroups", "workgroup_id", "global_invocation_id", "local_invocation_index")
"""Built-in values of an entry point that are below 2^31 on every adapter, which its compiler does not know."""


def opaque_divisors(text: str) -> str:
    """`a / b` and `a % b` of u32 as `(a + zero) / (b + zero)`, of a zero that no compiler knows: it can't join what is
    before to it."""

    class Divisors(Rules):
        def binary(self, left: Expression, operator: str, right: Expression) -> str | None:
            if operator not in ("/", "%") or element_of(self.concrete(left, right)) != "u32":
                return None
            return f"({left.text} + {_ZERO}) {operator} ({right.text} + {_ZERO})"

    changed = rewritten_expressions(text, Divisors())
    if changed == text:
        return text
    main = _MAIN.search(changed)
    names = dict(_BUILTIN.findall(main[2])) if main else {}
    zero = next((name for name in _KNOWN_ZERO if name in names), None)
    if main is None or zero is None:
        raise ValueError(
            f"WGSL: main has none of the built-in values {', '.join(_KNOWN_ZERO)}, one of which gives the opaque zero"
        )
    value = names[zero] + ("" if zero == "local_invocation_index" else ".x")
    return f"{changed[: main.end()]} {_ZERO} = {value} >> 31u;{changed[main.end() :]}var<private> {_ZERO}: u32;\n"


def compared_below_one(text: str) -> str:
    """`e == 0u` as `e < 1u`, and `e != 0u` as `e >= 1u`."""

    class Comparisons(Rules):
        def binary(self, left: Expression, operator: str, right: Expression) -> str | None:
            if operator not in ("==", "!="):
                return None
            for one, other in ((left, right), (right, left)):
                if other.text in ("0u", "0") and self.concrete(left, right) == "u32":
                    return f"({one.text} {'<' if operator == '==' else '>='} 1u)"
            return None

    return rewritten_expressions(text, Comparisons())


def sign_bits(text: str) -> str:
    """Unary minus and abs of floating-point numbers by their highest bit."""
    return rewritten_expressions(text, _Signs())


class _Signs(Rules):
    def unary(self, operator: str, operand: Expression) -> str | None:
        return self._changed("^", 0x80000000, operand) if operator == "-" else None

    def call(self, name: str, arguments: list[Expression]) -> str | None:
        return self._changed("&", 0x7FFFFFFF, arguments[0]) if name == "abs" else None

    @staticmethod
    def _changed(operator: str, mask: int, operand: Expression) -> str | None:
        element, width = element_of(operand.type), width_of(operand.type)
        if element not in ("f32", "f16") or operand.literal:
            return None
        floats, words = (f"vec{width}<f32>", f"vec{width}<u32>") if width > 1 else ("f32", "u32")
        value = operand.text if element == "f32" else f"{floats}({operand.text})"
        changed = f"bitcast<{floats}>(bitcast<{words}>({value}) {operator} {words}({mask:#x}u))"
        return changed if element == "f32" else f"{operand.type}({changed})"


def scalar_bounds(text: str) -> str:
    """min, max and clamp of vectors of floating-point numbers element by element."""
    rules = _Bounds()
    return rewritten_expressions(text, rules) + "".join(rules.functions.values())


class _Bounds(Rules):
    def __init__(self) -> None:
        self.functions = dict[str, str]()

    def call(self, name: str, arguments: list[Expression]) -> str | None:
        kind = self.concrete(*arguments)
        width, element = width_of(kind), element_of(kind)
        if name not in ("min", "max", "clamp") or element not in ("f32", "f16") or width == 1:
            return None
        own = f"scalar_{name}{width}_{element}"
        letters = "abc"[: len(arguments)]
        parts = (f"{name}({', '.join(f'{letter}.{place}' for letter in letters)})" for place in "xyzw"[:width])
        self.functions[own] = (
            f"fn {own}({', '.join(f'{letter}: {kind}' for letter in letters)}) -> {kind} {{\n"
            f"    return {kind}({', '.join(parts)});\n}}\n"
        )
        return f"{own}({', '.join(a.text for a in arguments)})"


REWRITINGS: dict[str, Callable[[str], str]] = {
    "counted_subgroups": counted_subgroups,
    "exchanged_stores": exchanged_stores,
    "plain_dots": plain_dots,
    "opaque_divisors": opaque_divisors,
    "compared_below_one": compared_below_one,
    "sign_bits": sign_bits,
    "scalar_bounds": scalar_bounds,
}
"""By the name of the workaround, in the order in which they apply."""


@lru_cache(1024)
def _rewritten(text: str, names: frozenset[str]) -> str:
    for name, rewriting in REWRITINGS.items():
        if name in names:
            text = rewriting(text)
    return text


def rewritten(text: str, names: Iterable[str]) -> str:
    """The module with these rewritings; the same text for none of them."""
    chosen = frozenset(names)
    return _rewritten(text, chosen) if chosen else text
