"""Elementwise steps that fusion put behind a kernel, as functions of its shader: of one element, or of four
neighbours."""

from __future__ import annotations

from collections.abc import Mapping

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.graph import BESIDE, Step
from ort_gpu_ep.ir.symbolic import is_symbolic, same
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT8, UINT8, DType, TensorType
from ort_gpu_ep.kernels.registry import Bindings, Kernel
from ort_gpu_ep.shaders.element_types import as_bits, value_type


def first_written(bindings: Bindings) -> str:
    return next((n for n, (_, written) in bindings.items() if written), "y")


def steps(kernel: Kernel, bindings: Bindings, first: str) -> str:
    """Each fused step as a function of its own, and `fused(v, i)` that calls them in order."""
    types, functions, lines = {"v": f"{first}_t", BESIDE: f"{first}_t"}, [], []
    for operand in fused_operands(kernel):
        tensor = bindings[operand][0]
        types[operand] = value_type(tensor.dtype, as_bits(kernel, tensor.dtype))
        lines.append(f"    let {operand}_value = {operand}_at({operand}_index(i));")
    for k, step in enumerate(kernel.epilogue):
        types[f"s{k}"] = _calculated(kernel, step.dtype)
        functions.append(_step_function(k, step, types))
        arguments = ", ".join(a if a in ("v", BESIDE) else f"{a}_value" for a in step.arguments)
        lines.append(f"    let s{k}_value = step{k}({arguments});")
    lines.append(f"    return s{len(kernel.epilogue) - 1}_value;")
    return "\n".join(
        [*functions, f"fn fused(v: {first}_t, i: u32) -> {types[f's{len(kernel.epilogue) - 1}']} {{", *lines, "}"]
    )


def _calculated(kernel: Kernel, dtype: DType) -> str:
    """The WGSL type of what a step gives: a number also in a kernel that binds bits."""
    return value_type(dtype, kernel.pairs and dtype.is_wide_integer)


def fused_operands(kernel: Kernel) -> list[str]:
    """Those that the fused steps read, in order."""
    return sorted({a for s in kernel.epilogue for a in s.arguments if a[0] == "e"}, key=lambda a: int(a[1:]))


def vector_bindings(kernel: Kernel, bindings: Bindings) -> set[str]:
    """Bindings of four elements at a time: the kernel's, and operands of the fused steps whose neighbours are the
    output's neighbours."""
    return set(kernel.vectors) | {
        name for name, reading in fused_reading(kernel, bindings).items() if reading == "four"
    }


def fused_reading(kernel: Kernel, bindings: Bindings) -> dict[str, str]:
    """How four neighbours of a kernel that stores vectors, or words of bytes, read each operand of its fused steps: as
    `four` (a vector), as a `word`, as `one` for all, or `each`.

    The planner asks, too: while a plan is made, the guards that follow from sizes of the run can be kept.
    """
    first = first_written(bindings)
    out = bindings[first][0]
    words = stores_words(kernel, first, out)
    if first not in kernel.vectors and not words:
        return {}
    innermost = out.shape[-1] if out.shape else 1
    in_one_row = same(innermost % 4, 0)  # else some four begin in one row of the output and end in the next
    texts: dict[str, str] = {}
    for name in fused_operands(kernel):
        tensor = bindings[name][0]
        if not tensor.shape or same(tensor.size, 1) or (in_one_row and same(tensor.shape[-1], 1)):
            texts[name] = "one"
        elif words:
            neighbours = tensor.shape == out.shape or (in_one_row and same(tensor.shape[-1], innermost))
            texts[name] = "word" if neighbours and tensor.dtype in (INT8, UINT8) else "each"
        else:
            texts[name] = (
                "four"
                if in_one_row and tensor.dtype in (FLOAT32, FLOAT16) and same(tensor.shape[-1], innermost)
                else "each"
            )
    return texts


def stores_words(kernel: Kernel, first: str, out: TensorType) -> bool:
    """Whether the first output is stored by words of four bytes, all of which the fused steps are applied to."""
    whole = (
        not kernel.groups
        and not kernel.raw
        and out.dtype in (INT8, UINT8)
        and not is_symbolic(out.size)
        and out.size % 4 == 0
    )
    return bool(kernel.epilogue) and (first in kernel.words or whole)


def word_steps(kernel: Kernel, bindings: Bindings, first: str) -> str:
    """`fused_word(v, i)`: the fused steps on elements 4 i .. 4 i + 3, as a word. Their functions stand there already
    (`steps`)."""
    read, applied = _on_four(kernel, bindings)
    lines, last = ["    var word = 0u;", *read], len(kernel.epilogue) - 1
    for k, own in enumerate(applied):
        lines += [*own, f"    word |= (u32(s{last}_{k}) & 0xffu) << {8 * k}u;"]
    return "\n".join([f"fn fused_word(v: vec4<{first}_t>, i: u32) -> u32 {{", *lines, "    return word;", "}"])


def vector_steps(kernel: Kernel, bindings: Bindings) -> str:
    """`fused4(v, i)`: the fused steps on elements 4 i .. 4 i + 3. Their functions stand there already (`steps`)."""
    read, applied = _on_four(kernel, bindings)
    values = ", ".join(f"s{len(kernel.epilogue) - 1}_{k}" for k in range(4))
    lines = [*read, *(line for own in applied for line in own), f"    return vec4<f32>({values});"]
    return "\n".join([f"fn fused4(v: {plain_vector(kernel)}, i: u32) -> vec4<f32> {{", *lines, "}"])


def steps_beside(kernel: Kernel, bindings: Bindings, first: str) -> str:
    """The fused steps in two halves, so that what they read can be under way early: `<first>_beside4(i)` reads the
    operands whose neighbours are the output's, `<first>_finished4(i, v, beside)` applies the steps.
    """
    fours = [name for name, way in fused_reading(kernel, bindings).items() if way == "four"]
    value = plain_vector(kernel)
    if not fours:
        return "\n".join(
            [
                f"alias {first}_beside_t = u32;",
                f"fn {first}_beside4(i: u32) -> u32 {{ return 0u; }}",
                f"fn {first}_finished4(i: u32, v: {value}, beside: u32) -> vec4<f32> {{ return "
                f"{first}_final4(i, v); }}",
            ]
        )
    read, applied = _on_four(kernel, bindings)
    values = ", ".join(f"s{len(kernel.epilogue) - 1}_{k}" for k in range(4))
    kept = [f"    let {name}_four = beside.{name};" for name in fours]
    rest = [line for line in read if not any(line.startswith(f"    let {name}_four =") for name in fours)]
    own = ", ".join(f"{name}_at4({name}_index(4u * i) / 4u)" for name in fours)
    return "\n".join(
        [
            f"struct {first}_beside_t {{ {', '.join(f'{name}: vec4<f32>' for name in fours)} }}",
            f"fn {first}_beside4(i: u32) -> {first}_beside_t {{ return {first}_beside_t({own}); }}",
            f"fn {first}_finished4(i: u32, v: {value}, beside: {first}_beside_t) -> vec4<f32> {{",
            *rest,
            *kept,
            *(line for step in applied for line in step),
            f"    return vec4<f32>({values});",
            "}",
        ]
    )


def plain_vector(kernel: Kernel) -> str:
    """The type of four elements that the fused steps begin with."""
    return f"vec4<{kernel.plain.dtype.value if kernel.plain else 'f32'}>"


def _on_four(kernel: Kernel, bindings: Bindings) -> tuple[list[str], list[list[str]]]:
    """WGSL that reads operands for elements 4 i .. 4 i + 3, and that applies the steps to each of them: what step s
    gives is `s<s>_<k>`."""
    reading, read = fused_reading(kernel, bindings), ["    let at = 4u * i;"]
    for name, way in reading.items():
        if way == "four":
            read.append(f"    let {name}_four = {name}_at4({name}_index(at) / 4u);")
        elif way == "word":
            unpacked = "unpack4xI8" if bindings[name][0].dtype is INT8 else "unpack4xU8"
            read.append(f"    let {name}_four = {unpacked}({name}_word({name}_index(at) / 4u));")
        elif way == "one":
            read.append(f"    let {name}_one = {name}_at({name}_index(at));")
    applied = []
    for k in range(4):
        own, part = list[str](), f"four.{'xyzw'[k]}"
        for name, way in reading.items():
            value = (
                f"{name}_at({name}_index(at + {k}u))" if way == "each" else f"{name}_{'one' if way == 'one' else part}"
            )
            own.append(f"    let {name}_{k} = {value};")
        for s, step in enumerate(kernel.epilogue):
            arguments = ", ".join(f"v.{'xyzw'[k]}" if a == "v" else f"{a}_{k}" for a in step.arguments)
            own.append(f"    let s{s}_{k} = step{s}({arguments});")
        applied.append(own)
    return read, applied


def _step_function(k: int, step: Step, types: Mapping[str, str]) -> str:
    parameters = ", ".join(f"{p}: {types[a]}" for p, a in zip("xyzw", step.arguments, strict=False))
    if len(step.arguments) > 4:
        raise InternalError(f"step {step.op} has {len(step.arguments)} arguments; an expression has at most x, y, z, w")
    return f"fn step{k}({parameters}) -> {types[f's{k}']} {{ return {step.expression}; }}"
