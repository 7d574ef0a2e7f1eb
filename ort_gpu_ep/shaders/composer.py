"""Writes the WGSL around a shader body: bindings, accessors, constants, index functions, fused steps, entry point.

A body never names a buffer's storage type or a constant's value. It sees, for each binding `x`:

    x_at(i)        element i as a value (packed and 16-bit types are unpacked); zero for an optional input left out
    x_t            the type of that value
    y_of(low, high) an element from its bits: of 64 bits, or in a raw kernel
    x_pair(i)      element i of 64 bits as its two words, the lower one first
    y_set(i, v)    stores element i, after the fused steps (unpacked types only; an `element` body never calls it)
    x_at4(i), y_set4(i, v)    elements 4 i .. 4 i + 3 of a binding that the kernel binds as vectors, read or stored as one vec4<f32>;
                   of a raw kernel vec4<u32>, and with fused steps what these begin with
    x_four(i), x_four_t, x_of_four(v)    the same as it is stored, its type, and the values: what is loaded ahead is converted later
    X_BITS         of a stored element, in directives
    y_final4(i, v), y_store4(i, v)    the two halves of y_set4: the fused steps, and the store of what they gave: four numbers, or
                   a word where the steps end in bytes
    y_beside4(i), y_beside_t, y_finished4(i, v, beside)    y_final4 in two halves: what it reads from memory, for what is loaded ahead, and
                   the steps on it
    x_eight(i)     elements 8 i .. 8 i + 7 of 16 bits, as vec4<u32>, of what the kernel binds as vectors and as words, and reads
    x_word(i)      word i of a binding of unsigned 32-bit words, or of elements that share them; x_word4(i) where it is bound as vectors
    x_store_word(i, word)    stores word i of a binding that the kernel stores by whole words: it has no x_set then; where it is bound as
                   vectors, x_store_word4(i, words)
    x_set_word(i, v)    the same of four bytes as numbers, after the fused steps
    HAS_X          for an optional input: whether it is there
    out_of_range() notes that data brought an index out of range, wrong_length() a sequence's length, wrong_count() a
      size, if the kernel
                   reports that;
                   divided_by_zero() that a step divides by 0
    subgroup_size, subgroup_lane    in a kernel of the feature `subgroup`: how many invocations of the workgroup are in this subgroup, and
                   which one of them this is. A subgroup may be larger than the workgroup, and the last one may be
                     filled in part:
                   subgroup_size counts what is there
    subgroups, subgroup_id    how many subgroups the workgroup has, and in which one this invocation is

and every constant and index function of its Kernel. A constant that only a run knows (symbolic.Size) is a member of a
uniform struct instead, and a body can't tell: `NAME` becomes `params.NAME`, also in the module constants of a body that
depend on it. So the source is the same for every such size; what a run must put into the struct is `parameters(...)`. A
body is one of three forms:

    fn element(i: u32) -> y_t                called once for each element of the first output
    fn group_main(group: u32, lane: u32)     called by each invocation of each workgroup; GROUPS and WORKGROUP_SIZE are constants
    fn grid_main(group: vec3<u32>, lane: u32) likewise, of a grid of up to three dimensions; WORKGROUP_SIZE is a
      constant

Lines that begin with # repeat, choose or include others (unroll.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import Real, Size, counts_of, is_symbolic
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, HALF, TensorType
from ort_gpu_ep.kernels.built import PINNED_SUBGROUP
from ort_gpu_ep.kernels.registry import (
    COUNT,
    DEFAULT_LIMITS,
    DIVISOR,
    ERROR_FLAGS,
    INDEX,
    LENGTH,
    Bindings,
    Const,
    Kernel,
    Limits,
    Pieces,
    parts,
)
from ort_gpu_ep.kernels.target import SUBGROUP_MATRIX
from ort_gpu_ep.memo import Memo
from ort_gpu_ep.shaders.accessors import (
    eights,
    in_parts,
    part_name,
    vector_readers,
    vector_writer,
    word_pairs,
    word_readers,
    word_writer,
    writer,
)
from ort_gpu_ep.shaders.element_types import as_bits, by_eight, per_word, storage, value_type, vector_type
from ort_gpu_ep.shaders.indices import merged, strided
from ort_gpu_ep.shaders.inlining import inlined
from ort_gpu_ep.shaders.steps import first_written, fused_reading, steps, stores_words, vector_bindings, word_steps
from ort_gpu_ep.shaders.unroll import expand, resolved

MAP_WORKGROUP_SIZE = 64
"""Workgroup size of an `element` body: two subgroups on most hardware."""

Kept: TypeAlias = Callable[[Hashable, Callable[[], str]], str]
"""Gives a text by all that it follows from; where it has none, by a function that makes it."""


@cache
def body(shader: str) -> str:
    """The text of a shader file, with what it includes. Raises InternalError where a file does not exist or includes
    itself."""
    return resolved(shader, _text)


def _text(shader: str) -> str:
    path = files("ort_gpu_ep.shaders") / shader
    if not path.is_file():
        raise InternalError(f"no shader file {shader!r} in ort_gpu_ep/shaders")
    return path.read_text("utf-8")


@cache
def library() -> dict[str, str]:
    """Functions that any body or expression may call: name -> text, from functions.wgsl."""
    text = body("functions.wgsl")
    parts = re.split(r"(?m)^(?=(?://[^\n]*\n)*fn )", text)
    return {m.group(1): part.strip() for part in parts if (m := re.search(r"(?m)^fn (\w+)", part))}


def compose(kernel: Kernel, bindings: Bindings, limits: Limits = DEFAULT_LIMITS, kept: Kept | None = None) -> str:
    """The whole WGSL module of a kernel for an adapter with these limits.

    bindings: as registry.tensors_of gives them; one that is larger than the adapter binds at a time is bound in several
    parts. kept: where texts of earlier processes are, see runtime/artefact.py.
    """
    pieces = {name: parts(tensor, limits.max_binding_nbytes) for name, (tensor, _) in bindings.items()}
    full = "subgroup" in kernel.features and limits.fills_subgroups(kernel.workgroup_size)
    signature = (_signature(kernel, bindings, pieces), full)
    text = _sources.get(signature)
    if text is not None and kept is None:
        return text

    def make() -> str:
        return text or _composed(kernel, bindings, pieces, full)

    # also one that another model has brought: its artefact is another one
    return _sources.put(signature, make() if kept is None else kept(signature, make))


_sources: Memo[str] = Memo(1024)  # of a few kilobytes each


def _signature(
    kernel: Kernel,
    bindings: Bindings,
    pieces: Pieces,
) -> Hashable:
    """All that the text follows from. A size of the run is in it as its kind: which size it is stands in no text."""
    first = first_written(bindings)
    indices = tuple(
        (name, *(tuple(map(_fixed, numbers)) for numbers in merged(index.shape, index.strides)), _fixed(index.offset))
        for name, index in kernel.indices
    )
    bound = tuple(
        (name, tensor.dtype.name, written, tuple(start for start, _ in pieces[name]))
        for name, (tensor, written) in bindings.items()
    )
    return (
        kernel.shader,
        kernel.raw,
        kernel.pairs,
        kernel.workgroup_size,
        kernel.optionals,
        kernel.epilogue,
        kernel.plain and kernel.plain.dtype.name,
        kernel.vectors,
        kernel.words,
        kernel.atomics,
        kernel.reports,
        kernel.grid is not None,
        kernel.features,
        kernel.into and (kernel.into.size, kernel.into.row, kernel.into.start),
        tuple((name, _fixed(value)) for name, value in kernel.consts),
        indices,
        _fixed(kernel.groups),
        bound,
        is_elementwise(kernel.shader) and _fixed(bindings[first][0].size),
        tuple(
            (name, inner.shader, inner.consts, inner.indices, inner.optionals, inner.reads)
            for name, inner in kernel.inlined
        ),
        tuple(fused_reading(kernel, bindings).items()),
        kernel.grid and counts_of(*kernel.grid) and tuple(map(_fixed, kernel.grid)),
    )


def _fixed(value: object) -> str:
    """A number as text, so that 1, 1.0 and True differ; of what a run brings, its kind."""
    return type(value).__name__ if is_symbolic(value) else repr(value)


def _composed(
    kernel: Kernel,
    bindings: Bindings,
    pieces: Pieces,
    full: bool,
) -> str:
    """full: no subgroup lacks an invocation."""
    item = parameters(kernel, bindings)
    symbols = {name for name, _ in item}
    out = [f"// {kernel.shader}"]
    raw = {name: as_bits(kernel, tensor.dtype, name) for name, (tensor, _) in bindings.items()}
    if "shader-f16" in kernel.features or any(
        t.dtype.storage == "f16" and not raw[name] for name, (t, _) in bindings.items()
    ):
        out.insert(0, "enable f16;")
    if SUBGROUP_MATRIX in kernel.features:
        out.insert(
            0, "enable chromium_experimental_subgroup_matrix;\ndiagnostic(off, chromium.subgroup_matrix_uniformity);"
        )
    if PINNED_SUBGROUP in dict(kernel.consts):
        out.insert(0, "enable subgroup_size_control;")
    variables = [(name, k) for name in bindings for k in range(len(pieces[name]))]
    inner = [
        line
        for name, other in kernel.inlined
        for line in inlined(name, other, _texts, kernel.raw, name in kernel.vectors)
    ]
    called = [f"{name}_word()" for name, way in fused_reading(kernel, bindings).items() if way == "word"]
    text = "\n".join([body(kernel.shader), *inner, *called])
    vectors = vector_bindings(kernel, bindings)
    out += [
        _declaration(
            kernel, bindings, vectors, name, f"@group(0) @binding({i}) var<storage, {{}}> {part_name(name, k)}"
        )
        for i, (name, k) in enumerate(variables)
    ]
    out += _parameter_struct(item, len(variables))
    out += [_const(name, value) for name, value in kernel.consts if name not in symbols]
    out += [_optional(name, item) for name, item in kernel.optionals]
    first = first_written(bindings)
    out += [strided(name, index) for name, index in kernel.indices]
    out += _readers(kernel, bindings, pieces, vectors, text)
    out += inner
    for call, bit in (("out_of_range", INDEX), ("wrong_length", LENGTH), ("wrong_count", COUNT)):
        if f"{call}(" in text:
            out.append(f"fn {call}() {{ {f'atomicOr(&{ERROR_FLAGS}[0], {bit}u); ' if kernel.reports else ''}}}")
    if any(step.divides for step in kernel.epilogue):
        out.append(f"fn divided_by_zero() {{ atomicOr(&{ERROR_FLAGS}[0], {DIVISOR}u); }}")
    if kernel.epilogue:
        out.append(steps(kernel, bindings, first))
        if stores_words(kernel, first, bindings[first][0]):
            out.append(word_steps(kernel, bindings, first))
    out += _writers(kernel, bindings, pieces, vectors, text)
    bits = {name: tensor.dtype.bits for name, (tensor, _) in bindings.items()} | {
        n: k.outputs[0].dtype.bits for n, k in kernel.inlined
    }
    text = expand(
        body(kernel.shader), {**{f"{name.upper()}_BITS": count for name, count in bits.items()}, **_numbers(kernel)}
    )
    out.append(_with_parameters(text, symbols & {name for name, _ in kernel.consts} | symbols & {"GROUPS"}))
    if is_elementwise(kernel.shader):
        out.append(_map_main(kernel, bindings[first][0], first))
    else:
        subgroup = _subgroup(kernel, full)
        out[-1] = subgroup.passed_to(out[-1])
        out.append(_group_main(kernel, subgroup))
    return "\n".join([*out, *_called("\n".join(out))]) + "\n"


def _declaration(kernel: Kernel, bindings: Bindings, vectors: Container[str], name: str, head: str) -> str:
    """head: all before the type, with a place for the access."""
    (tensor, written), raw = bindings[name], as_bits(kernel, bindings[name][0].dtype, name)
    element = (
        vector_type(tensor.dtype, raw or by_eight(kernel, name, tensor.dtype))
        if name in vectors
        else storage(tensor.dtype, raw)
    )
    element = "atomic<u32>" if name in (*kernel.atomics, ERROR_FLAGS) else element
    return f"{head.format('read_write' if written else 'read')}: array<{element}>;"


def _readers(kernel: Kernel, bindings: Bindings, pieces: Pieces, vectors: Container[str], text: str) -> Iterable[str]:
    """Each binding's element type and the functions that read it. text: what may call them."""
    first = first_written(bindings)
    for name, (tensor, _) in bindings.items():
        if name in (*kernel.atomics, ERROR_FLAGS):
            continue
        raw, plain = (
            as_bits(kernel, tensor.dtype, name),
            kernel.plain.dtype if kernel.plain and name == first else tensor.dtype,
        )
        yield f"alias {name}_t = {value_type(plain, as_bits(kernel, plain, name))};"
        if by_eight(kernel, name, tensor.dtype):
            yield eights(name, pieces[name])
            continue
        if name in vectors and (tensor.dtype in (FLOAT32, FLOAT16, HALF) or (raw and tensor.dtype.bits == 32)):
            yield from vector_readers(name, pieces[name], tensor.dtype, text, raw)
        elif name not in vectors:
            yield in_parts(name, pieces[name], tensor.dtype, raw)
        yield from word_readers(name, pieces[name], tensor.dtype, name in vectors, text, raw)
        yield from word_pairs(name, tensor.dtype, body(kernel.shader), raw)


def _writers(kernel: Kernel, bindings: Bindings, pieces: Pieces, vectors: Container[str], text: str) -> Iterable[str]:
    """The functions that write a binding. text: what may call them."""
    first, is_map = first_written(bindings), is_elementwise(kernel.shader)
    for name, (tensor, written) in bindings.items():
        raw = as_bits(kernel, tensor.dtype, name)
        if written and name in vectors and (raw or tensor.dtype in (FLOAT32, FLOAT16)):
            yield vector_writer(name, kernel, first, bindings, pieces[name], text)
        elif written and name in kernel.words:
            yield word_writer(name, kernel, first, text)
        elif (
            written
            and name not in vectors
            and name not in (*kernel.atomics, ERROR_FLAGS)
            and not (is_map and per_word(tensor.dtype, kernel.raw) > 1)
        ):
            yield writer(name, tensor.dtype, kernel, first, pieces[name])


def _texts(kernel: Kernel) -> Iterable[str]:
    """Of a kernel that is inlined: no size in it is one of a run."""
    yield from (_const(name, value) for name, value in kernel.consts)
    yield from (_optional(name, item) for name, item in kernel.optionals)
    yield from (strided(name, index) for name, index in kernel.indices)
    yield expand(body(kernel.shader), _numbers(kernel))


@cache
@cache
def _bodies() -> frozenset[str]:
    return frozenset(path.name for path in files("ort_gpu_ep.shaders").iterdir() if path.name.endswith(".wgsl"))


def is_body(shader: str) -> bool:
    """Whether a text is the name of a body's file."""
    return shader in _bodies()


@cache
def is_elementwise(shader: str) -> bool:
    """Whether a body is called once for each element of the first output."""
    return re.search(r"\bfn element\b", body(shader)) is not None


def parameters(kernel: Kernel, bindings: Bindings) -> list[tuple[str, Size | Real]]:
    """What only a run knows, by its name in the shader's uniform struct, in the struct's order. Each takes four
    bytes."""
    pairs: list[tuple[str, object]] = list(kernel.consts)
    for name, index in kernel.indices:
        shape, strides = merged(index.shape, index.strides)
        pairs += [(f"{name}_size{k}", size) for k, size in enumerate(shape) if k]
        pairs += [(f"{name}_stride{k}", stride) for k, stride in enumerate(strides)]
        pairs.append((f"{name}_offset", index.offset))
    if is_elementwise(kernel.shader):
        pairs.append(("ELEMENTS", bindings[first_written(bindings)][0].size))
    elif kernel.grid is None:
        pairs.append(("GROUPS", kernel.groups))
    elif counts_of(*kernel.grid):
        pairs += zip(_GRID, kernel.grid, strict=True)
    return [(name, value) for name, value in pairs if isinstance(value, (Size, Real))]


def _parameter_struct(given: Sequence[tuple[str, Size | Real]], binding: int) -> list[str]:
    if not given:
        return []
    members = ", ".join(f"{name}: {'u32' if isinstance(value, Size) else 'f32'}" for name, value in given)
    return [f"struct Parameters {{ {members} }}", f"@group(0) @binding({binding}) var<uniform> params: Parameters;"]


def _with_parameters(text: str, symbols: Iterable[str]) -> str:
    """The body with its symbols read from the struct. Module constants that depend on one are put where they are
    used."""
    replaced = {name: f"params.{name}" for name in symbols}
    if not replaced:
        return text
    lines = []
    for line in _joined_constants(text).split("\n"):
        match = re.fullmatch(r"const (\w+)(?:: (\w+))? = (.*);", line)
        if match and any(re.search(rf"\b{name}\b", match[3]) for name in replaced):
            replaced[match[1]] = f"({_replace(match[3], replaced)})"
        else:
            lines.append(line)
    return _replace("\n".join(lines), replaced)


def _joined_constants(text: str) -> str:
    """Each module constant on one line, its comment gone."""
    return re.sub(r"(?ms)^const [^;]*;[^\n]*", lambda m: " ".join(m[0].split(";")[0].split()) + ";", text)


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    return re.sub(rf"(?<![\w.])({'|'.join(map(re.escape, replaced))})\b", lambda m: replaced[m[1]], text)


def _called(source: str) -> Iterable[str]:
    """The library functions that the source calls, and those that these call."""
    files, queue, texts = library(), [source], dict[str, str]()
    while queue:
        caller = queue.pop()
        # most are not even a part of a word: looking for all words took longer than the rest of composing
        for name in files:
            if name not in texts and f"{name}(" in caller and re.search(rf"\b{name}\(", caller):
                texts[name] = files[name]
                queue.append(files[name])
    return texts.values()


def _const(name: str, value: Const) -> str:
    if isinstance(value, bool):
        return f"const {name}: bool = {str(value).lower()};"
    if isinstance(value, int):
        return f"const {name}: {'i32' if value < 0 else 'u32'} = {value}{'i' if value < 0 else 'u'};"
    return f"const {name}: f32 = {literal(value)};"


def literal(value: float) -> str:
    """A WGSL f32 literal of a finite or infinite number (WGSL has no literal for infinity: an expression stands for
    it)."""
    import numpy as np

    number = np.float32(value)
    if np.isnan(number):
        return "nan_f32()"
    if np.isinf(number):
        return "inf_f32()" if number > 0 else "(-inf_f32())"
    text = repr(float(number))
    return f"({text}f)" if text[0] == "-" else f"{text}f"  # -0.0 too: a minus may stand before it


def literal_f64(value: float) -> str:
    """A WGSL f64 literal, or an expression where there is none."""
    if math.isnan(value) or math.isinf(value):
        return f"f64({literal(value)})"
    return f"({value!r}lf)" if f"{value!r}"[0] == "-" else f"{value!r}lf"


def _optional(name: str, given: bool) -> str:
    flag = f"const HAS_{name.upper()}: bool = {str(given).lower()};"
    return flag if given else f"{flag}\nfn {name}_at(i: u32) -> f32 {{ return 0.0; }}"


def _numbers(kernel: Kernel) -> dict[str, int]:
    """What the directives of a body may name: constants that are whole numbers and known, and which optional inputs
    there are."""
    numbers = {
        name: value for name, value in kernel.consts if isinstance(value, (int, bool)) and not is_symbolic(value)
    }
    return {
        **numbers,
        "WORKGROUP_SIZE": kernel.workgroup_size,
        "PAIRS": kernel.pairs,
        **{f"HAS_{name.upper()}": item for name, item in kernel.optionals},
    }


_BITS = {
    "f32": "(pack2x16float(vec2<f32>({0}, 0.0)) & {1})",
    "bool": "select(0u, 1u, {0})",
    "i32": "(bitcast<u32>({0}) & {1})",
    "u32": "({0} & {1})",
}


def _map_main(kernel: Kernel, out: TensorType, first: str) -> str:
    per = per_word(out.dtype, kernel.raw)
    if is_symbolic(out.size):
        size = "params.ELEMENTS"
        words = size if per == 1 else f"({size} + {per - 1}u) / {per}u"
    else:
        size, words = f"{out.size}u", f"{-(-out.size // per)}u"
    if per == 1:
        store = f"    {first}_set(i, element(i));"
    elif stores_words(kernel, first, out):
        store = (
            f"    {first}[i] = "
            f"fused_word(vec4<{first}_t>({', '.join(f'element(4u * i + {k}u)' for k in range(4))}), i);"
        )
    else:
        value = "fused(element(k), k)" if kernel.epilogue else "element(k)"
        bits = _BITS[value_type(out.dtype, kernel.raw)].format(value, f"{(1 << 32 // per) - 1}u")
        store = (
            f"    var word = 0u;\n    for (var j = 0u; j < {per}u; j++) {{\n        let k = i * {per}u + j;\n"
            f"        if (k < {size}) {{ word |= {bits} << (j * {32 // per}u); }}\n    }}\n    {first}[i] = word;"
        )
    return (
        f"@compute @workgroup_size({MAP_WORKGROUP_SIZE})\n"
        "fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {\n"
        f"    let i = id.x + id.y * n.x * {MAP_WORKGROUP_SIZE}u;\n    if (i >= {words}) {{ return; }}\n{store}\n}}"
    )


_SUBGROUP = {
    "subgroup_size": "subgroup_size",
    "subgroup_lane": "subgroup_invocation_id",
    "subgroups": "num_subgroups",
    "subgroup_id": "subgroup_id",
}
"""What a body calls it, and WGSL's built-in value."""


@dataclass(frozen=True, slots=True)
class _Subgroup:
    """What a body names of its subgroup. full: subgroup_size is the built-in value, else what is there is counted.

    A driver's built-in size may exceed what a workgroup has, and with some it exceeds what the pipeline was compiled
    for.
    """

    names: tuple[str, ...]
    full: bool

    @property
    def counts(self) -> bool:
        return not self.full and "subgroup_size" in self.names

    @property
    def inputs(self) -> str:
        """Parameters of the entry point."""
        return "".join(
            f", @builtin({_SUBGROUP[name]}) its_{name}: u32"
            for name in self.names
            if name != "subgroup_size" or self.full
        )

    @property
    def assigned(self) -> str:
        """For functions of the body: variables of the module."""
        return ("let its_subgroup_size = subgroupAdd(1u); " if self.counts else "") + "".join(
            f"{name} = its_{name}; " for name in self.names
        )

    @property
    def variables(self) -> str:
        return "".join(f"var<private> {name}: u32;\n" for name in self.names)

    @property
    def arguments(self) -> str:
        return "".join(f", its_{name}" for name in self.names)

    def passed_to(self, text: str) -> str:
        """The body whose main function gets them as parameters: of these, other than of variables, WGSL knows that a
        subgroup agrees."""
        arguments = "".join(f", {name}: u32" for name in self.names)
        return re.sub(r"\bfn (?:group|grid)_main\([^)]*", lambda found: found[0] + arguments, text)


def _subgroup(kernel: Kernel, full: bool) -> _Subgroup:
    named = (
        [name for name in _SUBGROUP if re.search(rf"\b{name}\b", body(kernel.shader))]
        if "subgroup" in kernel.features
        else []
    )
    return _Subgroup(tuple(named), full)


def _group_main(kernel: Kernel, subgroup: _Subgroup) -> str:
    if kernel.grid is not None:
        ends = [
            f"params.{name}" if is_symbolic(count) else f"{count}u"
            for name, count in zip(_GRID, kernel.grid, strict=True)
        ]
        pinned = dict(kernel.consts).get(PINNED_SUBGROUP)
        within = counts_of(*kernel.grid)  # there are as many workgroups as the most that there can be takes
        return (
            (
                f"fn beyond_grid(id: vec3<u32>) -> bool {{ return any(id >= vec3<u32>({', '.join(ends)})); }}\n"
                if within
                else ""
            )
            + f"{subgroup.variables}const WORKGROUP_SIZE: u32 = {kernel.workgroup_size}u;\n"
            f"@compute @workgroup_size({kernel.workgroup_size}){f' @subgroup_size({pinned})' if pinned else ''}\n"
            f"fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: "
            f"u32{subgroup.inputs}) {{ "
            + ("if (beyond_grid(id)) { return; } " if within else "")
            + f"{subgroup.assigned}grid_main(id, lane{subgroup.arguments}); }}"
        )
    varies = is_symbolic(kernel.groups)
    constants = [] if varies else [f"const GROUPS: u32 = {kernel.groups}u;"]
    return subgroup.variables + "\n".join(
        [
            *constants,
            f"const WORKGROUP_SIZE: u32 = {kernel.workgroup_size}u;",
            f"@compute @workgroup_size({kernel.workgroup_size})",
            "fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, "
            f"@builtin(local_invocation_index) lane: u32{subgroup.inputs}) {{",
            f"    {subgroup.assigned}let group = id.x + id.y * n.x;",
            f"    if (group >= {'params.' if varies else ''}GROUPS) {{ return; }}",
            f"    group_main(group, lane{subgroup.arguments});",
            "}",
        ]
    )


_GRID = ("GRID_X", "GRID_Y", "GRID_Z")
"""What the uniform struct calls the workgroups of a grid that follows from a count."""

_INDICES = (
    "let group = id.x + id.y * n.x;",
    f"let i = id.x + id.y * n.x * {MAP_WORKGROUP_SIZE}u;",
    "grid_main(id, lane",
)
"""How the entry point of each kind of body learns which workgroup, or element, it is."""


def beginning_at(text: str, first: tuple[int, int, int]) -> str:
    """The module of a kernel of which a dispatch does the workgroups from this one on. first: the others' are 0 without
    a grid."""
    group, element, grid = _INDICES
    x, y, z = first
    text = text.replace(group, f"{group[:-1]} + {x}u;").replace(element, f"{element[:-1]} + {x * MAP_WORKGROUP_SIZE}u;")
    place = f"id + vec3<u32>({x}u, {y}u, {z}u)"
    return text.replace(grid, f"grid_main({place}, lane").replace("beyond_grid(id)", f"beyond_grid({place})")


def workgroup_count(kernel: Kernel, out: TensorType) -> int:
    """Workgroups of a dispatch without a grid. `out`: the first output."""
    if not is_elementwise(kernel.shader):
        return kernel.groups
    return -(-out.size // (per_word(out.dtype, kernel.raw) * MAP_WORKGROUP_SIZE))


def folded(count: int, max_groups: int = 65535) -> tuple[int, int, int]:
    """A count over the limit of one dimension is folded into two. Raises UnsupportedNodeError where two don't hold
    it."""
    rows = -(-count // max_groups)
    if rows > max_groups:
        raise UnsupportedNodeError(Code.LIMIT, f"{count} workgroups; this adapter allows {max_groups} x {max_groups}")
    return (-(-count // rows), rows, 1) if count else (0, 1, 1)
