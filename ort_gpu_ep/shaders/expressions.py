"""Reads the expressions of a WGSL module with their types, so that rules may replace some of them.

It knows as much of WGSL as the modules of this package use: declarations, structs, aliases, statements, operators,
built-in functions. What it does not know has the type "": a rule leaves that alone. Constants of the language (`const`,
types, attributes, case selectors) stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\s+|0[xX][0-9a-fA-F]+[iu]?|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?:lf|li|lu|[iufh])?|\w+|"
    r">>=|<<=|->|&&|\|\||<<|>>|<=|>=|==|!=|\+\+|--|[-+*/%&|^]=|.",
    re.DOTALL,
)
_TEMPLATED = re.compile(r"vec[234]|mat[234]x[234]|array|ptr|atomic|bitcast|var|subgroup_matrix\w*|subgroupMatrix\w+")
_KEYWORDS = frozenset(
    {"if", "else", "while", "switch", "return", "loop", "continuing", "break", "continue", "default", "discard"}
)
_BINARY = {
    "||": 1,
    "&&": 2,
    "|": 3,
    "^": 4,
    "&": 5,
    "==": 6,
    "!=": 6,
    "<": 6,
    ">": 6,
    "<=": 6,
    ">=": 6,
    "<<": 7,
    ">>": 7,
    "+": 8,
    "-": 8,
    "*": 9,
    "/": 9,
    "%": 9,
}
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})
_SHORT = {"f": "f32", "h": "f16", "i": "i32", "u": "u32"}
_RESULTS = {
    "arrayLength": "u32",
    "all": "bool",
    "any": "bool",
    "dot4U8Packed": "u32",
    "dot4I8Packed": "i32",
    "pack4xU8": "u32",
    "pack4xI8": "u32",
    "pack2x16float": "u32",
    "unpack4xU8": "vec4<u32>",
    "unpack4xI8": "vec4<i32>",
    "unpack2x16float": "vec2<f32>",
    "pack4xI8Clamp": "u32",
    "pack4xU8Clamp": "u32",
    "quantizeToF16": "f32",
    "subgroupAll": "bool",
    "subgroupAny": "bool",
    "subgroupBallot": "vec4<u32>",
    "subgroupElect": "bool",
}
_OF_ELEMENT = frozenset({"dot", "length", "distance"})
_SCALARS = frozenset({"u32", "i32", "f32", "f16", "f64", "u64", "i64", "bool"})


@dataclass(frozen=True, slots=True)
class Expression:
    """Its text, rewritten, and its type: a WGSL type, "int" or "float" of a literal without a suffix, "" where it is
    not known."""

    text: str
    type: str
    literal: bool = False


class Rules:
    """What takes the place of expressions; None leaves one as it is. Operands are rewritten already."""

    def unary(self, operator: str, operand: Expression) -> str | None:
        return None

    def binary(self, left: Expression, operator: str, right: Expression) -> str | None:
        return None

    def call(self, name: str, arguments: list[Expression]) -> str | None:
        return None

    @staticmethod
    def concrete(*operands: Expression) -> str:
        """The type of an operation on these: of a vector before that of a scalar, of what is known before that of a
        literal."""
        types = [o.type for o in operands]
        return next((t for t in types if t.startswith("vec")), "") or next(
            (t for t in types if t not in ("int", "float", "")), types[0]
        )


def element_of(kind: str) -> str:
    """u32 of u32 and of vec4<u32>."""
    return kind[5:-1] if re.fullmatch(r"vec[234]<\w+>", kind) else kind


def width_of(kind: str) -> int:
    """Elements of a vector; 1 of all else."""
    return int(kind[3]) if kind.startswith("vec") else 1


def rewritten_expressions(text: str, rules: Rules) -> str:
    """The module after these rules."""
    return _Module(text, rules).text()


class _Module:
    def __init__(self, text: str, rules: Rules) -> None:
        self.rules, self.tokens, self.at = rules, _TOKEN.findall(text), 0
        self.aliases = {m[1]: m[2].replace(" ", "") for m in re.finditer(r"\balias (\w+)\s*=\s*([^;]+);", text)}
        self.structs = {
            m[1]: dict(re.findall(r"(\w+)\s*:\s*([\w<>, ]+?)\s*(?:,|$|\n|(?=\}))", m[2]))
            for m in re.finditer(r"\bstruct (\w+)\s*\{([^}]*)\}", text)
        }
        self.functions = {
            m[1]: self.type_named(m[2] or "")
            for m in re.finditer(r"\bfn (\w+)\s*\((?:[^(){]|\([^)]*\))*\)\s*(?:->\s*([^{]+?)\s*)?\{", text)
        }
        self.scopes: list[dict[str, str]] = [{}]
        self._globals(text)

    def _globals(self, text: str) -> None:
        """Names of the module, wherever they stand: WGSL lets functions name what is declared below them."""
        depth0 = "".join(_outside_functions(text))
        for m in re.finditer(r"\bvar(?:<[^>]*>)?\s+(\w+)\s*:\s*([^;=]+?)\s*(?:=[^;]*)?;", depth0):
            self.scopes[0][m[1]] = self.type_named(m[2])
        for m in re.finditer(r"\b(?:const|override)\s+(\w+)\s*(?::\s*([\w<>, ]+?)\s*)?(?:=\s*([^;]+))?;", depth0):
            self.scopes[0][m[1]] = self.type_named(m[2]) if m[2] else self._constant(m[3])

    def _constant(self, text: str) -> str:
        tokens, at, rules = self.tokens, self.at, self.rules
        self.tokens, self.at, self.rules = _TOKEN.findall(text), 0, Rules()
        kind = self.expression().type
        self.tokens, self.at, self.rules = tokens, at, rules
        return kind

    def type_named(self, text: str) -> str:
        """A type without aliases, spaces, attributes and short forms."""
        kind = re.sub(r"\s+", "", text)
        kind = re.sub(r"@\w+(\([^)]*\))?", "", kind)
        kind = re.sub(r"\b(vec[234])([fhiu])\b", lambda m: f"{m[1]}<{_SHORT[m[2]]}>", kind)
        for _ in range(4):
            kind = re.sub(r"\w+", lambda m: self.aliases.get(m[0], m[0]), kind)
        return kind

    # ---- tokens

    def peek(self) -> str:
        """The next token that is no space and no comment, "" at the end."""
        at = self.at
        while at < len(self.tokens) and (self.tokens[at].isspace() or self.tokens[at][:2] in ("//", "/*")):
            at += 1
        return self.tokens[at] if at < len(self.tokens) else ""

    def take(self) -> str:
        """The next token, with the spaces and comments before it."""
        start = self.at
        while self.at < len(self.tokens) and (
            self.tokens[self.at].isspace() or self.tokens[self.at][:2] in ("//", "/*")
        ):
            self.at += 1
        self.at += 1
        return "".join(self.tokens[start : self.at])

    def until(self, *ends: str) -> str:
        """All before one of these tokens, outside of brackets."""
        parts, depth = list[str](), 0
        while (token := self.peek()) and (depth or token not in ends):
            depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
            parts.append(self.take())
        return "".join(parts)

    def template(self) -> str:
        """From `<` to its `>`."""
        parts, depth = [self.take()], 1
        while depth and self.peek():
            token = self.peek()
            if token == ">>" and depth == 1:
                raise ValueError(f"WGSL: '>>' after {''.join(parts)!r}")
            depth += (token == "<") - token.count(">") * (token in (">", ">>"))
            parts.append(self.take())
        return "".join(parts)

    # ---- module and statements

    def text(self) -> str:
        out = list[str]()
        while token := self.peek():
            if token == "fn":
                out.append(self._function())
            elif token in ("const", "override", "alias", "struct", "enable", "diagnostic", "requires"):
                out.append(
                    (self.until("{") + self.take() + self.until("}") if token == "struct" else self.until(";"))
                    + self.take()
                )
            else:
                out.append(self.take())
        return "".join([*out, *self.tokens[self.at :]])

    def _function(self) -> str:
        head = self.take() + self.take()
        parameters = self.until("{")
        self.scopes.append(
            {
                name: self.type_named(kind)
                for name, kind in re.findall(r"(\w+)\s*:\s*([\w]+(?:<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)?)", parameters)
            }
        )
        body = self._block()
        self.scopes.pop()
        return head + parameters + body

    def _block(self) -> str:
        out, depth = list[str](), 0
        while token := self.peek():
            if token == "{":
                depth += 1
                self.scopes.append({})
                out.append(self.take())
            elif token == "}":
                depth -= 1
                self.scopes.pop()
                out.append(self.take())
                if not depth:
                    break
            else:
                out.append(self._statement(token))
        return "".join(out)

    def _statement(self, token: str) -> str:
        if token == "case":
            return self.until(":", "{")
        if token == "@":
            return (
                self.take() + self.take() + (self.take() + self.until(")") + self.take() if self.peek() == "(" else "")
            )
        if token == "for":
            return self.take() + self.take()
        if token in ("let", "var", "const"):
            return self._declaration(token)
        if (
            token in _KEYWORDS
            or token in (";", ")", ":", ",", "=", "++", "--")
            or (token[-1] == "=" and token not in _BINARY)
        ):
            return self.take()
        if token == "_":
            return self.take()
        target = self.expression()
        if self.peek() not in ("/=", "%="):
            return target.text
        operator, value = self.take(), self.expression()
        changed = self.rules.binary(target, operator.strip()[0], value)
        return f"{target.text} = {changed}" if changed is not None else f"{target.text}{operator}{value.text}"

    def _declaration(self, token: str) -> str:
        out = self.take()
        if self.peek() == "<":
            out += self.template()
        name = self.peek()
        out, kind = out + self.take(), ""
        if self.peek() == ":":
            out += self.take()
            declared = self.until("=", ";")
            out, kind = out + declared, self.type_named(declared)
        if self.peek() == "=":
            out += self.take()
            if token == "const":
                value = self.until(";")
                out, kind = out + value, kind or self._constant(value)
            else:
                expression = self.expression()
                out, kind = (
                    out + expression.text,
                    kind or {"int": "i32", "float": "f32"}.get(expression.type, expression.type),
                )
        self.scopes[-1][name] = kind
        return out

    # ---- expressions

    def expression(self, least: int = 1) -> Expression:
        left = self._unary()
        while _BINARY.get(self.peek(), 0) >= least:
            operator = self.peek()
            spaced = self.take()
            right = self.expression(_BINARY[operator] + 1)
            left = self._joined(left, operator, spaced, right)
        return left

    def _joined(self, left: Expression, operator: str, spaced: str, right: Expression) -> Expression:
        kind = left.type if operator in ("<<", ">>") else Rules.concrete(left, right)
        if operator == "*" and "mat" in (left.type[:3], right.type[:3]):
            kind = ""
        lead = left.text[: len(left.text) - len(left.text.lstrip())]
        stripped = [Expression(e.text.strip(), e.type, e.literal) for e in (left, right)]
        changed = self.rules.binary(stripped[0], operator, stripped[1])
        if operator in _COMPARISONS:
            kind = f"vec{width_of(kind)}<bool>" if width_of(kind) > 1 else "bool"
        literal = left.literal and right.literal
        return Expression(f"{left.text}{spaced}{right.text}" if changed is None else lead + changed, kind, literal)

    def _unary(self) -> Expression:
        token = self.peek()
        if token not in ("-", "!", "~", "&", "*"):
            return self._postfix(self._primary())
        spaced = self.take()
        operand = self._unary()
        lead = spaced[:-1]
        changed = self.rules.unary(token, Expression(operand.text.strip(), operand.type, operand.literal))
        kind = _pointed(operand.type) if token == "*" else f"ptr<?,{operand.type}>" if token == "&" else operand.type
        return Expression(spaced + operand.text if changed is None else lead + changed, kind, operand.literal)

    def _primary(self) -> Expression:
        token = self.peek()
        if token == "(":
            opening, inner = self.take(), self.expression()
            return Expression(f"{opening}{inner.text}{self.take()}", inner.type, inner.literal)
        if token[0].isdigit() or token[0] == ".":
            return Expression(self.take(), _type_of_literal(token), True)
        if not re.fullmatch(r"\w+", token):
            before = "".join(self.tokens[max(0, self.at - 20) : self.at])
            raise ValueError(f"WGSL: got {token!r} where an expression begins, after {before!r}")
        text = self.take()
        named = token
        if self.peek() == "<" and _TEMPLATED.fullmatch(token):
            template = self.template()
            text, named = text + template, token + template
        if self.peek() != "(":
            kind = (
                "bool"
                if token in ("true", "false")
                else next((s[token] for s in reversed(self.scopes) if token in s), "")
            )
            return Expression(text, kind)
        return self._call(token, named, text)

    def _call(self, token: str, named: str, text: str) -> Expression:
        opening, arguments, commas = self.take(), list[Expression](), list[str]()
        while self.peek() != ")":
            arguments.append(self.expression())
            if self.peek() == ",":
                commas.append(self.take())
        closing = self.take()
        whole = "".join(
            a.text + c for a, c in zip(arguments, [*commas, *[""] * (len(arguments) - len(commas))], strict=True)
        )
        kind = self._result(token, named, arguments)
        changed = (
            None
            if token in self.functions or not arguments
            else self.rules.call(token, [Expression(a.text.strip(), a.type, a.literal) for a in arguments])
        )
        lead = text[: len(text) - len(text.lstrip())]
        return Expression(f"{text}{opening}{whole}{closing}" if changed is None else lead + changed, kind)

    def _result(self, token: str, named: str, arguments: list[Expression]) -> str:
        if token in self.functions:
            return self.functions[token]
        if token == "bitcast":
            return self.type_named(named[len("bitcast") :].strip()[1:-1])
        kind = self.type_named(named)
        if kind in _SCALARS or kind in self.structs or "<" in kind:
            return kind
        if re.fullmatch(r"vec[234]|array", kind):
            elements = [element for a in arguments if (element := element_of(a.type)) in _SCALARS]
            return f"{kind}<{elements[0]}>" if elements else ""
        if token in _RESULTS:
            return _RESULTS[token]
        if token.startswith(("atomic", "workgroupUniformLoad")) and arguments:
            return re.sub(r"^atomic<(\w+)>$", r"\1", _pointed(arguments[0].type))
        if not arguments:
            return ""
        kind = Rules.concrete(*(arguments[:2] if token == "select" else arguments))
        return element_of(kind) if token in _OF_ELEMENT else kind

    def _postfix(self, value: Expression) -> Expression:
        while self.peek() in (".", "["):
            kind = _pointed(value.type)
            if self.peek() == "[":
                opening, index = self.take(), self.expression()
                value = Expression(f"{value.text}{opening}{index.text}{self.take()}", self._element(kind))
            else:
                dot, name = self.take(), self.peek()
                value = Expression(f"{value.text}{dot}{self.take()}", self._member(kind, name))
        return value

    def _element(self, kind: str) -> str:
        if kind.startswith("array<"):
            inner, depth = kind[6:-1], 0
            for place, letter in enumerate(inner):
                depth += (letter in "<(") - (letter in ">)")
                if letter == "," and not depth:
                    return inner[:place]
            return inner
        return element_of(kind) if kind.startswith("vec") else ""

    def _member(self, kind: str, name: str) -> str:
        if kind in self.structs:
            return self.type_named(self.structs[kind].get(name, ""))
        if not kind.startswith("vec"):
            return ""
        return element_of(kind) if len(name) == 1 else f"vec{len(name)}<{element_of(kind)}>"


def _pointed(kind: str) -> str:
    """What a pointer points to; any other type itself."""
    match = re.match(r"ptr<[^,]*,(.*?)(?:,(?:read|write|read_write))?>$", kind)
    return match[1] if match else kind


def _type_of_literal(token: str) -> str:
    if token[:2] in ("0x", "0X"):
        return {"u": "u32", "i": "i32"}.get(token[-1], "int")
    ends = {"lf": "f64", "lu": "u64", "li": "i64", "u": "u32", "i": "i32", "f": "f32", "h": "f16"}
    return next(
        (kind for end, kind in ends.items() if token.endswith(end)), "float" if re.search(r"[.eE]", token) else "int"
    )


def _outside_functions(text: str) -> list[str]:
    """The parts of a module that are in no function, without comments."""
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    parts, start, depth = list[str](), 0, 0
    for match in re.finditer(r"\bfn\s+\w+|[{}]", bare):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if not depth and start < 0:
                start = match.end()
        elif not depth:
            parts.append(bare[start : match.start()])
            start = -1
    return [*parts, bare[start:] if start >= 0 else ""]
