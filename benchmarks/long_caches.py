"""GPU time of attention of few tokens over long caches, in several numbers of keys a step and of workgroups a unit.

python -m benchmarks.long_caches [--tokens 512,32768] [--sizes 64,128] [--caches float32,int8] [--queries 1,4]
                                 [--heads 32/8,28/4] [--shares 4,8] [--more] [--json FILE]

The node is GroupQueryAttention, rotary, whose cache has room for as many tokens as it has: where past and present are
one buffer (`in place`), and with them apart (`plain`, without what appends the token). heads: of queries, in so many of
keys. queries: tokens of the step; of several, attention.wgsl is measured, too, in the form that is estimated the best.
Times are by timestamps around REPEATS runs of attention_split and attention_join in one pass, median of five: both,
then the first alone. estimate: of the form, without a dispatch, which ends a pass. Caches that fit into a GPU's own
cache are read from there. GB/s: of keys and values. roof: of copies, bytes read and written. `--shares`: also with so
many queries of a workgroup at most. `--more`: also other parameters than those that are chosen. `--json`: FILE is written after each row.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from benchmarks.gpu_time import REPEATS, Warmth
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Tensor
from ort_gpu_ep.device.timing import Timer
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.ops import attention_split
from ort_gpu_ep.ops.attention_split import IN_PARTS
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.webgpu import native

BITS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}
KINDS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int8": TensorProto.INT8,
    "int4": TensorProto.UINT8,
}
COPY_NBYTES = 1 << 29


class Shape(NamedTuple):
    """heads, groups: of queries, of keys. queries: tokens of the step."""

    heads: int
    groups: int
    queries: int


def model(tokens: int, size: int, cache: str, in_place: bool, shape: Shape) -> onnx.ModelProto:
    """The last tokens of so many. in_place: there is room for them in the past."""
    kind, of_cache, half = KINDS["float32"], KINDS[cache], size // 2
    if cache == "float16":
        kind = of_cache
    row = size // 2 if cache == "int4" else size
    angles = np.outer(np.arange(tokens), 10000.0 ** (-np.arange(half) / half))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    constants = {"total": np.array(tokens, np.int32), "cos": np.cos(angles), "sin": np.sin(angles)}
    coded: dict[str, Any] = {}
    inputs = ["x", "", "", "past_k", "past_v", "last", "total", "cos", "sin"]
    if cache in ("int8", "int4"):
        scale = np.full((1, shape.groups, 1, size), 0.02, np.float32)
        constants |= {"k_scale": scale, "v_scale": scale}
        inputs += ["", "", "", "k_scale", "v_scale"]
        coded = {"kv_cache_bit_width": BITS[cache], "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
    node = helper.make_node(
        "GroupQueryAttention",
        inputs,
        ["y", "k", "v"],
        domain="com.microsoft",
        num_heads=shape.heads,
        kv_num_heads=shape.groups,
        do_rotary=1,
        **coded,
    )
    tensors = [
        numpy_helper.from_array(np.asarray(a, a.dtype if a.dtype.kind == "i" or "scale" in name else dtype), name)
        for name, a in constants.items()
    ]
    before = 0 if in_place else shape.queries
    rows = {"past_k": tokens - before, "past_v": tokens - before, "k": tokens, "v": tokens}
    caches = [helper.make_tensor_value_info(name, of_cache, (1, shape.groups, n, row)) for name, n in rows.items()]
    x = helper.make_tensor_value_info("x", kind, (1, shape.queries, (shape.heads + 2 * shape.groups) * size))
    last = helper.make_tensor_value_info("last", TensorProto.INT32, (1,))
    y = helper.make_tensor_value_info("y", kind, (1, shape.queries, shape.heads * size))
    graph = helper.make_graph([node], "attention", [x, *caches[:2], last], [y, *caches[2:]], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def seconds_of(gpu: Gpu, program: Program, tokens: int, in_place: bool) -> tuple[float, float, dict[str, Any]]:
    """Of both kernels and of the first alone, with constants of the first."""
    rng, tensors = np.random.default_rng(1), []
    for name in program.graph.inputs:
        value = program.graph.values[name]
        kind = TensorType(value.dtype, value.shape)
        tensors.append(Tensor(gpu.allocate(kind.nbytes), 0, kind))
        block = np.array([tokens - 1], np.int32) if name == "last" else None
        if block is None and value.dtype.numpy.kind == "f":
            block = rng.standard_normal(min(kind.size, 1 << 20)).astype(value.dtype.numpy)
        elif block is None:
            block = rng.integers(0, 256, min(kind.size, 1 << 20), np.uint8)
        for at in range(0, kind.nbytes, block.nbytes):
            gpu.upload(tensors[-1].buffer, at, block.ctypes.data, min(block.nbytes, kind.nbytes - at))
    plan = program.plan([t.type for t in tensors])
    outputs = [Tensor(gpu.allocate(plan.outputs[0].nbytes), 0, plan.outputs[0])]
    outputs += tensors[1:3] if in_place else [Tensor(gpu.allocate(t.nbytes), 0, t) for t in plan.outputs[1:]]
    try:
        program.run(tensors, lambda index, *_: outputs[index])
        (prepared,) = program.compiled.general
        bound, timer = prepared.bind(tensors, outputs), Timer(gpu)
        steps = [
            (step, pipeline, group)
            for step, pipeline, group in zip(plan.steps, prepared._pipelines, bound, strict=False)
            if isinstance(step, Dispatch) and step.kernel.shader.startswith("attention")
        ]

        def once(chosen: list[Any]) -> float:
            encoder = gpu.device.create_command_encoder("long caches")
            compute = encoder.begin_compute_pass(timer.writes(0))
            for _ in range(REPEATS):
                for step, pipeline, group in chosen:
                    native.dispatch(compute, pipeline, group, step.groups)
            compute.end()
            timer.resolve(encoder)
            gpu.execute([native.finish(encoder)])
            return timer.read_s() / REPEATS

        both, alone = (float(np.median([once(chosen) for _ in range(5)])) for chosen in (steps, steps[:1]))
        return both, alone, dict(steps[0][0].kernel.consts)
    finally:
        program.close()
        for tensor in {id(t.buffer): t for t in (*tensors, *outputs)}.values():
            gpu.free(tensor.buffer)


@contextlib.contextmanager
def parameters(**values: int) -> Iterator[None]:
    """Of ops/attention_split.py, meanwhile."""
    with apart(), mock.patch.multiple(attention_split, **values) if values else contextlib.nullcontext():
        yield


def variants(cache: str, shares: Sequence[int], more: bool) -> Iterator[dict[str, int]]:
    yield {}
    for share in shares:
        yield {"MAX_SHARE": share}
    if not more:
        return
    if cache in ("int8", "int4"):
        for step in (32, 64, 128):
            for per_unit in (2, 3, 4, 5):
                yield {"CODE_KEYS": step, "PER_UNIT": per_unit}
        for step in (64, 128):
            yield {"CODE_KEYS": step, "PER_UNIT": 2, "LANES": 256}
        return
    for step in (512, 1024, 2048):
        for per_unit in (2, 3, 4, 6):
            yield {"VECTORS": step, "PER_UNIT": per_unit}


def copy_gbytes(gpu: Gpu) -> float:
    """GB/s, read and written, of copies between two buffers; by the clock, since no pass has them."""
    source, target = (gpu.allocate(COPY_NBYTES) for _ in range(2))

    def once() -> float:
        encoder = gpu.device.create_command_encoder("copy")
        for _ in range(REPEATS):
            native.copy_buffer(encoder, source.native, 0, target.native, 0, COPY_NBYTES)
        gpu.finish()
        start = time.perf_counter()
        gpu.execute([native.finish(encoder)])
        gpu.finish()
        return time.perf_counter() - start

    try:
        return 2 * COPY_NBYTES * REPEATS / min(once() for _ in range(5)) / 1e9
    finally:
        for buffer in (source, target):
            gpu.free(buffer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="512,4096,32768,131072")
    parser.add_argument("--sizes", default="128,64", help="elements of a head")
    parser.add_argument("--caches", default=",".join(BITS))
    parser.add_argument("--queries", default="1", help="tokens of the step")
    parser.add_argument("--heads", default="32/8", help="of queries, and of keys")
    parser.add_argument("--shares", default="", help="queries of a workgroup at most")
    parser.add_argument("--more", action="store_true", help="other parameters, too")
    parser.add_argument("--plain", action="store_true", help="the plain form, too")
    parser.add_argument("--adapter", default="", help="index, type or part of the name")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = Config(adapter=options.adapter, checked_shaders="0")
    gpu, rows = Gpu.open(config), list[dict[str, Any]]()
    warmth = Warmth(gpu, config)
    warmth.give()
    roof = copy_gbytes(gpu)
    print(f"{gpu.info.name}: roof {roof:.0f} GB/s", flush=True)
    print(
        f"{'cache':8} {'head':>4} {'heads':>6} {'queries':>7} {'tokens':>7} {'form':8} {'parameters':40} {'keys':>5} "
        f"{'parts':>5} {'us':>8} {'first':>8} {'GB/s':>6} {'estimate':>8}"
    )
    cases = itertools.product(
        options.caches.split(","),
        map(int, options.sizes.split(",")),
        [tuple(map(int, text.split("/"))) for text in options.heads.split(",")],
        map(int, options.queries.split(",")),
        map(int, options.tokens.split(",")),
        (True, False) if options.plain else (True,),
    )
    shares = [int(n) for n in options.shares.split(",") if n]
    for cache, size, (heads, groups), queries, tokens, in_place in cases:
        nbytes = 2 * tokens * groups * size * BITS[cache] // 8
        graph = from_onnx(model(tokens, size, cache, in_place, Shape(heads, groups, queries)))
        todo = [(IN_PARTS, values) for values in variants(cache, shares, options.more and in_place)]
        for form, values in todo:
            warmth.give()
            with parameters(**values), forced(form) as seen:
                both, alone, consts = seconds_of(gpu, Program(graph, config, gpu), tokens, in_place)
            choice = next(iter(seen.values()), None)
            estimate = choice.estimates_ns[form] - gpu.limits.figures.dispatch_ns if choice else 0.0
            said = form if form != IN_PARTS else " ".join(f"{name}={n}" for name, n in values.items())
            print(
                f"{cache:8} {size:4} {f'{heads}/{groups}':>6} {queries:7} {tokens:7} "
                f"{'in place' if in_place else 'plain':8} {said:40} "
                f"{consts.get('KEYS', ''):5} {consts.get('SPLITS', ''):5} {both * 1e6:8.1f} {alone * 1e6:8.1f} "
                f"{nbytes / both / 1e9:6.0f} {estimate / 1e3:8.1f}",
                flush=True,
            )
            row = {"cache": cache, "size": size, "heads": heads, "groups": groups, "queries": queries, "tokens": tokens}
            row |= {"in_place": in_place, "form": form, **values, "us": both * 1e6, "first_us": alone * 1e6}
            rows.append(row | {"gbytes": nbytes / both / 1e9, "estimate_us": estimate / 1e3})
            if options.json:
                options.json.write_text(json.dumps({"roof_gbytes": roof, "rows": rows}, indent=1))
            if choice and (form, values) == todo[0]:
                todo.append((next(name for name in choice.forms if name != IN_PARTS), {}))


if __name__ == "__main__":
    main()
