"""A first self-test of an adapter: transfers and one kernel of each kind, on fresh random values, against numpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Program, Tensor
from ort_gpu_ep.graph import Array, Graph, Node, Value
from ort_gpu_ep.types import TensorType, dtype_of


@dataclass(frozen=True, slots=True)
class Probe:
    """One check and its outcome. seen: the largest error, or what went wrong."""

    name: str
    passed: bool
    time_ms: float
    seen: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def selftest(gpu: Gpu) -> list[Probe]:
    """Runs every probe; one that raises has failed, the others still run."""
    rng = np.random.default_rng()
    return [_probe(name, check, gpu, rng) for name, check in _CHECKS.items()]


def _probe(name: str, check: Callable[[Gpu, np.random.Generator], float], gpu: Gpu, rng: np.random.Generator) -> Probe:
    start = time.perf_counter()
    try:
        error = check(gpu, rng)
        passed, seen = error < 1e-5, f"relative error {error:.1e}"
    except Exception as problem:   # whatever a driver does wrong is a finding, not a crash of the doctor
        passed, seen = False, f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    return Probe(name, passed, (time.perf_counter() - start) * 1e3, seen)


def _transfer(gpu: Gpu, rng: np.random.Generator) -> float:
    data = rng.integers(0, 256, 1_000_003).astype(np.uint8)
    back = np.zeros_like(data)
    first, second = gpu.allocate(data.nbytes), gpu.allocate(data.nbytes)
    gpu.upload(first, 0, data.ctypes.data, data.nbytes)
    gpu.copy(first, 0, second, 0, data.nbytes)
    gpu.download(second, 0, back.ctypes.data, back.nbytes)
    gpu.free(first)
    gpu.free(second)
    return float(np.mean(data != back))


def _op(op: str, version: int, reference: Callable[..., Array], *shapes: tuple[int, ...]) -> Callable[[Gpu, np.random.Generator], float]:
    """A check of one op on standard-normal float32 inputs of these shapes."""
    def check(gpu: Gpu, rng: np.random.Generator) -> float:
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        want = reference(*(a.astype(np.float64) for a in arrays))
        got = run_node(gpu, Node(op, tuple(f"x{i}" for i in range(len(arrays))), ("y",), version=version), arrays)
        return float(np.linalg.norm(got - want) / np.linalg.norm(want))
    return check


def run_node(gpu: Gpu, node: Node, arrays: list[Array]) -> Array:
    """The first output of a one-node graph. Raises what planning or the device raises."""
    types = [TensorType(dtype_of(a), a.shape) for a in arrays]
    values = {n: Value(n, t.dtype, t.shape) for n, t in zip(node.inputs, types, strict=True)}
    program = Program(Graph("selftest", node.inputs, node.outputs[:1], (node,), values), Config(), gpu)
    inputs = [Tensor(gpu.allocate(a.nbytes), 0, t) for a, t in zip(arrays, types, strict=True)]
    for tensor, array in zip(inputs, arrays, strict=True):
        gpu.upload(tensor.buffer, 0, array.ctypes.data, array.nbytes)
    out = program.plan(types).outputs[0]
    result = Tensor(gpu.allocate(out.nbytes), 0, out)
    program.run(inputs, lambda index, shape: result)
    got = np.empty(out.shape, out.dtype.numpy)
    gpu.download(result.buffer, 0, got.ctypes.data, got.nbytes)
    for tensor in (*inputs, result):
        gpu.free(tensor.buffer)
    program.close()
    return got


_CHECKS: dict[str, Callable[[Gpu, np.random.Generator], float]] = {
    "upload, copy, readback": _transfer,
    "elementwise": _op("Add", 14, lambda a, b: a + b, (101, 67), (67,)),
    "matrix product": _op("MatMul", 13, lambda a, b: a @ b, (67, 129), (129, 35)),
    "softmax": _op("Softmax", 13, lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True), (37, 211)),
    "reduction": _op("ReduceL2", 18, lambda a: np.sqrt((a * a).sum(keepdims=True)), (3, 7, 1013)),   # a plain sum may cancel to nothing
    "many workgroups": _op("Mul", 14, lambda a, b: a * b, (65_537 * 67,), (1,)),
}
