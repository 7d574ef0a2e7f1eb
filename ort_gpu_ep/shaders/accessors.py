"""How a shader reads and stores elements of a binding: packed or not, by one or by four, in one part or several."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ort_gpu_ep.ir.types import BOOL, FLOAT16, FLOAT32, HALF, DType
from ort_gpu_ep.kernels.registry import Bindings, Kernel
from ort_gpu_ep.shaders.element_types import per_word, value_type, vector_type
from ort_gpu_ep.shaders.steps import plain_vector, steps_beside, vector_steps


def part_name(name: str, part: int) -> str:
    """The variable of a part of a tensor; the first has the tensor's own name."""
    return f"{name}_part{part}" if part else name


def in_parts(name: str, pieces: Sequence[tuple[int, int]], dtype: DType, raw: bool) -> str:
    """`<name>_at(i)`: reads the part that holds element i."""
    readers = [_reader(part_name(name, k), dtype, raw) for k in range(len(pieces))]
    if len(pieces) == 1:
        return readers[0]
    readers[0] = readers[0].replace(f"fn {name}_at", f"fn {name}_part0_at")
    cases = [
        f"    if (i >= {first}u) {{ return {name}_part{k}_at(i - {first}u); }}"
        for k, (first, _) in reversed(list(enumerate(pieces)))
    ]
    body_text = "\n".join([*cases[:-1], f"    return {name}_part0_at(i);"])
    return "\n".join([*readers, f"fn {name}_at(i: u32) -> {value_type(dtype, raw)} {{", body_text, "}"])


def _reader(name: str, dtype: DType, raw: bool) -> str:
    value, per = value_type(dtype, raw), per_word(dtype, raw)
    if per > 1:
        bits = 32 // per
        word, shift = f"{name}[i / {per}u]", f"(i % {per}u) * {bits}u"
        if dtype is HALF:
            got = f"unpack2x16float({word})[i % {per}u]"
        elif dtype is BOOL and not raw:
            got = f"extractBits({word}, {shift}, {bits}u) != 0u"
        else:
            got = f"extractBits({f'bitcast<i32>({word})' if value == 'i32' else word}, {shift}, {bits}u)"
    else:
        got = f"f32({name}[i])" if not raw and dtype.storage == "f16" else f"{name}[i]"
    return f"fn {name}_at(i: u32) -> {value} {{ return {got}; }}"


def writer(name: str, dtype: DType, kernel: Kernel, first: str, pieces: Sequence[tuple[int, int]]) -> str:
    fused = kernel.epilogue and name == first
    value = "fused(v, i)" if fused else "v"
    if not kernel.raw and dtype.storage == "f16":
        value = f"f16({value})"
    cases = [
        f"if (i >= {start}u) {{ {part_name(name, k)}[i - {start}u] = {value}; return; }} "
        for k, (start, _) in reversed(list(enumerate(pieces)))
        if k
    ]
    return (
        f"fn {name}_set(i: u32, v: {name}_t) {{ {''.join(cases)}{name}[{_stored_at(kernel, name == first)}] = "
        f"{value}; }}"
    )


def _stored_at(kernel: Kernel, first: bool, unit: int = 1) -> str:
    """Where element i (of so many numbers) of the first output is stored: elsewhere in a larger tensor that it is a
    part of."""
    if kernel.into is None or not first:
        return "i"
    size, row, start = (n // unit for n in (kernel.into.size, kernel.into.row, kernel.into.start))
    return f"i / {size}u * {row}u + {start}u + i % {size}u"


def vector_readers(name: str, pieces: Sequence[tuple[int, int]], dtype: DType, text: str, raw: bool) -> list[str]:
    """`<name>_at4(i)`; of one element, `<name>_at(i)`; where the body wants them, `<name>_four(i)`, its type,
    `<name>_of_four(v)`."""
    cases = "".join(
        f"if (i >= {first // 4}u) {{ return {part_name(name, k)}[i - {first // 4}u]; }} "
        for k, (first, _) in reversed(list(enumerate(pieces)))
        if k
    )
    four, single = (
        vector_type(dtype, raw),
        f"fn {name}_at(i: u32) -> {'u32' if raw else 'f32'} {{ return {name}_at4(i / 4u)[i % 4u]; }}",
    )
    stored = f"(i: u32) -> {four} {{ {cases}return {name}[i]; }}"
    if raw or (dtype is FLOAT32 and f"{name}_four(" not in text):
        return [f"fn {name}_at4{stored}", single]
    values = {HALF: "vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y))", FLOAT16: "vec4<f32>(v)"}.get(dtype, "v")
    return [
        f"alias {name}_four_t = {four};",
        f"fn {name}_four{stored}",
        f"fn {name}_of_four(v: {four}) -> vec4<f32> {{ return {values}; }}",
        f"fn {name}_at4(i: u32) -> vec4<f32> {{ return {name}_of_four({name}_four(i)); }}",
        single,
    ]


def eights(name: str, pieces: Sequence[tuple[int, int]]) -> str:
    """`<name>_eight(i)`: eight neighbours of 16 bits."""
    cases = "".join(
        f"if (i >= {first // 8}u) {{ return {part_name(name, k)}[i - {first // 8}u]; }} "
        for k, (first, _) in reversed(list(enumerate(pieces)))
        if k
    )
    return f"fn {name}_eight(i: u32) -> vec4<u32> {{ {cases}return {name}[i]; }}"


def word_pairs(name: str, dtype: DType, text: str, raw: bool) -> list[str]:
    """`<name>_of(low, high)`, an element from its bits, and `<name>_pair(i)`, one of 64 bits as two words, where the
    body calls them."""
    lines = []
    if f"{name}_of(" in text:
        whole = (
            "low" if dtype.nbytes < 8 else "vec2<u32>(low, high)" if raw else f"{name}_t((u64(high) << 32u) | u64(low))"
        )
        lines.append(f"fn {name}_of(low: u32, high: u32) -> {name}_t {{ return {whole}; }}")
    if f"{name}_pair(" in text and dtype.nbytes == 8:
        value = f"{name}_at(i)"
        words = value if raw else f"vec2<u32>(u32({value} & 4294967295li), u32(({value} >> 32u) & 4294967295li))"
        lines.append(f"fn {name}_pair(i: u32) -> vec2<u32> {{ return {words}; }}")
    return lines


def word_readers(
    name: str, pieces: Sequence[tuple[int, int]], dtype: DType, vector: bool, text: str, raw: bool
) -> list[str]:
    """`<name>_word(i)` or `<name>_word4(i)`, where the body, which may number its bindings by a loop, calls it."""
    suffix, per, kind = ("_word4", 128 // dtype.bits, "vec4<u32>") if vector else ("_word", 32 // dtype.bits, "u32")
    called = re.search(rf"\b({name}|{name.rstrip('0123456789')}\$\(\w+\)){suffix}\(", text)
    # vectors of those are two words (vector_readers)
    words = dtype.storage == "u32" and not (vector and dtype.bits == 16)
    if not called or not (words or (raw and dtype.bits < 32)):
        return []
    cases = "".join(
        f"if (i >= {first // per}u) {{ return {part_name(name, k)}[i - {first // per}u]; }} "
        for k, (first, _) in reversed(list(enumerate(pieces)))
        if k
    )
    return [f"fn {name}{suffix}(i: u32) -> {kind} {{ {cases}return {name}[i]; }}"]


def word_writer(name: str, kernel: Kernel, first: str, text: str) -> str:
    """`<name>_store_word(i, word)`: a tensor of packed elements that is written has one part (claim.py); bound as
    vectors, `<name>_store_word4(i, words)`. `<name>_set_word(i, v)` of bytes, after the fused steps. Where the body
    stores vectors, and fused steps make bytes of them, also what `vector_writer` writes, for words.
    """
    if name in kernel.vectors:
        return f"fn {name}_store_word4(i: u32, words: vec4<u32>) {{ {name}[i] = words; }}"
    fused = bool(kernel.epilogue) and name == first
    word = (
        "fused_word(v, i)" if fused else " | ".join(f"((u32(v.{c}) & 0xffu) << {8 * k}u)" for k, c in enumerate("xyzw"))
    )
    lines = [
        f"fn {name}_store_word(i: u32, word: u32) {{ {name}[i] = word; }}",
        f"fn {name}_set_word(i: u32, v: vec4<{name}_t>) {{ {name}_store_word(i, {word}); }}",
    ]
    if fused and kernel.plain and kernel.plain.dtype is FLOAT32 and re.search(rf"\b{name}_(final|store|set)4\(", text):
        lines += [
            f"fn {name}_final4(i: u32, v: vec4<f32>) -> u32 {{ return {word}; }}",
            f"fn {name}_store4(i: u32, word: u32) {{ {name}_store_word(i, word); }}",
            f"fn {name}_set4(i: u32, v: vec4<f32>) {{ {name}_set_word(i, v); }}",
        ]
    return "\n".join(lines)


def vector_writer(
    name: str,
    kernel: Kernel,
    first: str,
    bindings: Bindings,
    pieces: Sequence[tuple[int, int]],
    text: str,
) -> str:
    """`<name>_final4(i, v)`, the fused steps; `<name>_store4(i, v)`; and `<name>_set4(i, v)`, one after the other. The
    steps in two halves, too, where the body, text, calls these.
    """
    fused = bool(kernel.epilogue) and name == first
    value = "vec4<f16>(v)" if bindings[name][0].dtype is FLOAT16 and not kernel.raw else "v"
    cases = "".join(
        f"if (i >= {start // 4}u) {{ {part_name(name, k)}[i - {start // 4}u] = {value}; return; }} "
        for k, (start, _) in reversed(list(enumerate(pieces)))
        if k
    )
    lines = [vector_steps(kernel, bindings)] if fused else []
    at, four = _stored_at(kernel, name == first, 4), "vec4<u32>" if kernel.raw else "vec4<f32>"
    body = plain_vector(kernel) if fused else four
    return "\n".join(
        [
            *lines,
            f"fn {name}_final4(i: u32, v: {body}) -> {four} {{ return {'fused4(v, i)' if fused else 'v'}; }}",
            f"fn {name}_store4(i: u32, v: {four}) {{ {cases}{name}[{at}] = {value}; }}",
            f"fn {name}_set4(i: u32, v: {body}) {{ {name}_store4(i, {name}_final4(i, v)); }}",
            *([steps_beside(kernel, bindings, name)] if f"{name}_beside4(" in text else []),
        ]
    )
