"""Shader modules, bind group layouts and compute pipelines, created on first use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeAlias

from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.errors import ShaderError
from ort_gpu_ep.kernels.registry import Bindings, Kernel, Limits, parts
from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.scheduler.plan import Copy, Dispatch
from ort_gpu_ep.shaders import compose
from ort_gpu_ep.shaders.composer import beginning_at, parameters
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.blobs import Blobs
from ort_gpu_ep.webgpu.library import GPUError

Composer: TypeAlias = Callable[[Kernel, Bindings, Limits], str]
"""The WGSL of a kernel: (kernel, its bindings, the adapter's limits), see shaders.compose. A drill brings one that
plants a fault."""

Layout: TypeAlias = tuple[tuple[bool, ...], bool, int]
"""What the layout of a pipeline follows from: written, varies and awaited of `bind_group_layout`."""

Note: TypeAlias = Callable[[Dispatch, str, Layout], Blobs | None]
"""Takes a dispatch, its text and its layout. Returns what is kept of the pipeline."""


_MAIN = re.compile(r"fn main\([^{]*\blane: u32\) \{")

ROLLED = {"gemm.wgsl": ("k < TK;", "e < 16u;"), "packed_product.wgsl": ("k < STEP;", "e < 16u;")}
"""Loops that a compiler for CPUs had better not unroll, by their conditions: see `rolled`."""


def is_checked(gpu: Gpu, option: str, shader: str) -> bool:
    """Whether a shader file is compiled with bounds and loop checks. option: checked_shaders."""
    return option == "1" or (option == "auto" and shader not in gpu.trusted)


def pipelines(
    gpu: Gpu,
    steps: Sequence[Dispatch | Copy],
    checked: str,
    composer: Composer = compose,
    note: Note | None = None,
) -> list[Any]:
    """The pipeline of each step (None for a copy), compiled by several threads: drivers take up to 50 ms for one.

    checked: the option checked_shaders. note: told of each, on whatever thread. Raises: ShaderError.
    """

    def one(step: Dispatch | Copy) -> Any:
        return pipeline(gpu, step, checked, composer, note) if isinstance(step, Dispatch) else None

    if len(steps) < 4:
        return [one(s) for s in steps]
    with ThreadPoolExecutor(min(len(steps), os.cpu_count() or 1), "ort_gpu_ep-compile") as pool:
        return list(pool.map(one, steps))


def pipeline(
    gpu: Gpu,
    dispatch: Dispatch,
    option: str,
    composer: Composer = compose,
    note: Note | None = None,
    first: tuple[int, int, int] = (0, 0, 0),
) -> Any:
    """The pipeline of a dispatch, or of its part from a workgroup on. Raises ShaderError, with the composed source,
    where it does not compile.
    """
    limit, checked = gpu.limits.max_binding_nbytes, is_checked(gpu, option, dispatch.kernel.shader)
    source = composer(dispatch.kernel, dispatch.bindings, gpu.limits)
    source = beginning_at(source, first) if any(first) else source
    written = tuple(t.written for t in dispatch.tensors for _ in parts(t.type, limit))
    varies = bool(parameters(dispatch.kernel, dispatch.bindings))
    bound = (written, varies, len(dispatch.awaited))
    blobs = note(dispatch, source, bound) if note is not None else None
    return compiled(gpu, dispatch.label, dispatch.kernel.shader, source, bound, checked, blobs)


def bind_group_layout(gpu: Gpu, written: tuple[bool, ...], varies: bool = False, awaited: int = 0) -> Any:
    """An explicit layout: read-only and writable storage buffers, in order. varies: then a uniform struct, at an offset
    of the run's. awaited: then so many buffers that the shader does not name.
    """
    return gpu.layouts.get(
        (written, varies, awaited), lambda: gpu.device.create_bind_group_layout(written, varies, awaited)
    )


def compiled(
    gpu: Gpu, label: str, shader: str, source: str, bound: Layout, checked: bool, blobs: Blobs | None = None
) -> Any:
    """The pipeline of a text. shader: the file that it is made of. blobs: what is kept of it. Raises ShaderError."""
    text = worked_around(gpu, label, source)

    def make() -> Any:
        code = rolled(shader, text) if gpu.info.is_software else text
        try:
            with gpu.compilation_of(shader), blobs.lent() if blobs is not None else nullcontext():
                if interrupts.ending.is_set():
                    raise ShaderError(f"{label}: not compiled, since Ctrl-C ends this program")
                return _compile(gpu, label, code, bound, checked)
        except GPUError as error:
            numbered = "\n".join(f"{n:4} {line}" for n, line in enumerate(code.splitlines(), 1))
            raise ShaderError(f"{label}: {shader} does not compile on {gpu.info.name}: {error}\n{numbered}") from error

    return gpu.pipeline((text, checked, bound[2]), make)


def worked_around(gpu: Gpu, label: str, source: str) -> str:
    """The text as this driver gets it: the same where it has no fault that needs another one. Raises ShaderError."""
    if not gpu.rewritings:
        return source
    from ort_gpu_ep.shaders.rewriting import rewritten  # few adapters need it

    try:
        return rewritten(source, gpu.rewritings)
    except ValueError as error:
        raise ShaderError(
            f"{label}: its text can't be rewritten for the known faults of {gpu.info.name} "
            f"({', '.join(sorted(gpu.rewritings))}): {error}"
        ) from error


def rolled(shader: str, source: str) -> str:
    """The text with loops whose number of turns a compiler can't know.

    Mesa unrolls them for CPUs, too. LLVM takes twice as long then, on the cores that are to run the code, which is
    slower than the loop.
    """
    text = source
    for condition in ROLLED.get(shader, ()):
        text = text.replace(condition, f"{condition[:-1]} + never;")
    return (
        text if text == source else _MAIN.sub(r"\g<0>\n    never = lane >> 31u;", text) + "\nvar<private> never: u32;\n"
    )


def _compile(gpu: Gpu, label: str, source: str, bound: Layout, checked: bool) -> Any:
    device = gpu.device
    module = device.create_shader_module(label, source) if checked else native.trusted_module(device, label, source)
    layout = gpu.layouts.get(("pipeline", bound), lambda: device.create_pipeline_layout(bind_group_layout(gpu, *bound)))
    return device.create_compute_pipeline(label, layout, module)
