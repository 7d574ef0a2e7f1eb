"""What a probe is, and what it works with: one adapter, fresh random numbers, and numpy to compare with.

A probe is a function of a Trial. It returns what it saw; it raises WrongResultError where the adapter is wrong and
Unsupported where the adapter does not offer what it tests. `disables` says what can't be trusted when it fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Tensor, run_wgsl
from ort_gpu_ep.errors import Code, DeviceError, UnsupportedNodeError, WrongResultError
from ort_gpu_ep.ir.graph import Array, Attribute, Graph, Node, Value
from ort_gpu_ep.ir.model_file import OF_GROUPS
from ort_gpu_ep.ir.types import UINT8, Shape, TensorType, dtype_of, packed
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.problems import Problem
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.kernels.registry import ADAPTER, Bindings, Kernel, Limits
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.shaders import compose

POISON = 0xFF
"""Every output buffer is filled with it first (NaN, -1), so that an element that is never written is seen."""

EDGE = (r"if \((i|group) >= ([\w.]+)\) \{ return; \}", r"if (\1 + 1u >= \2) { return; }")
"""The fault of the kernel probes: the last word, or the last workgroup, of a dispatch is left out."""


class Unsupported(Exception):
    """The adapter does not offer what a probe tests."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One row of the table.

    name, group: for people. check: the function. disables: what a failure puts out of use: shader files, device
    features, registry.PACKED, INLINED, WORKGROUP or ADAPTER. fault: (pattern, replacement) in the text of the shaders
    that the probe compiles, or the name of a fault that `Trial.planted` announces to the probe. quick: part of the
    first use of an adapter. ops: types, for models with one of which it is likewise, where the adapter is hardware:
    then kernels need no bounds checks, or have another form (`late`). timeout_s: a probe that takes longer hangs. cure:
    the rewriting of shaders (shaders/rewriting.py) that is made for the fault that it looks for. problems: that it
    solves.
    """

    name: str
    group: str
    check: Callable[[Trial], str]
    disables: tuple[str, ...]
    fault: tuple[str, str] | str
    quick: bool = False
    timeout_s: float = 30.0
    ops: frozenset[str] = frozenset()
    cure: str = ""
    problems: tuple[Problem, ...] = ()

    def is_quick(self, software: bool) -> bool:
        """Whether it is part of the first use of an adapter, by some model. software: the adapter computes on the
        CPU."""
        return self.quick or (bool(self.ops) and not software)


RECURRENT = frozenset({"DynamicQuantizeLSTM", "GRU", "LSTM", "RNN"})
CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcConv"})
IN_GROUPS = frozenset(op + OF_GROUPS for op in CONVOLUTIONS)
PRODUCTS = RECURRENT | {
    "Attention",
    "DynamicQuantizeMatMul",
    "Einsum",
    "FusedGemm",
    "FusedMatMul",
    "Gemm",
    "GroupQueryAttention",
    "MatMul",
    "MatMulInteger",
    "MatMulBnb4",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "MoE",
    "MultiHeadAttention",
    "QAttention",
    "QGemm",
    "QLinearMatMul",
    "QMoE",
}
SUMS_OF_PRODUCTS = PRODUCTS | CONVOLUTIONS | {"ConvInteger", "ConvTranspose", "QLinearConv"}
POOLS = frozenset(
    {
        "AveragePool",
        "LRN",
        "LpPool",
        "MaxPool",
        "NhwcMaxPool",
        "QLinearAveragePool",
        "QLinearGlobalAveragePool",
        "Resize",
        "Upsample",
    }
)
"""Op types of models that want the same probes; one that is missing here costs bounds checks until a model's pipelines
are known."""

PROBES: dict[str, Probe] = {}
"""Every probe by name, in the order in which they run: each group builds on those before it."""


def probe(
    name: str,
    group: str,
    *,
    disables: Sequence[str] = (ADAPTER,),
    fault: tuple[str, str] | str = EDGE,
    quick: bool = False,
    timeout_s: float = 30.0,
    ops: Collection[str] = (),
    cure: str = "",
    problems: tuple[Problem, ...] = (),
) -> Callable[[Callable[[Trial], str]], Callable[[Trial], str]]:
    """Adds a row."""

    def add(check: Callable[[Trial], str]) -> Callable[[Trial], str]:
        if name in PROBES:
            raise ValueError(f"two probes are named {name!r}")
        PROBES[name] = Probe(
            name, group, check, tuple(disables), fault, quick, timeout_s, frozenset(ops), cure, problems
        )
        return check

    return add


def late() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The probes of a first use that not every model wants, on hardware, as verdicts.Late: by op types that a model
    has, or shader files that it uses.

    Their files keep their bounds checks until they have run; so do, of a family that no other probe of a first use
    stands for, the files that none is about.
    """
    always = {what for p in PROBES.values() if p.quick for what in p.disables}
    covered = {what for p in PROBES.values() if p.is_quick(software=False) for what in p.disables}
    stood_for = {RECORDS[file].family for file in always if file in RECORDS}
    for probe in PROBES.values():
        if probe.ops and not probe.quick:
            files = {file for file in probe.disables if file in RECORDS} - always
            families = {RECORDS[file].family for file in files} - stood_for
            files |= {file for file, record in RECORDS.items() if record.family in families and file not in covered}
            yield probe.name, tuple(sorted(probe.ops | files))


@dataclass
class Trial:
    """What a probe works with. rounds: how often it repeats with fresh inputs. planted: the fault of a drill, else
    empty.

    only: the shader file that a planted fault is in; empty: in all that the probe dispatches. shaders: files dispatched
    so far.
    """

    gpu: Gpu
    rng: np.random.Generator
    rounds: int = 1
    planted: tuple[str, str] | str = ""
    only: str = ""
    shaders: set[str] = field(default_factory=set)

    def normal(self, *shape: int) -> Array:
        """Standard-normal float32."""
        return self.rng.standard_normal(shape, np.float32)

    def integers(self, low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
        """Uniform integers, low <= i < high."""
        return self.rng.integers(low, high, shape).astype(dtype)

    def need(self, feature: str) -> None:
        if feature not in self.gpu.limits.features:
            raise Unsupported(f"the adapter has no {feature}")

    def some(self, *axes: Sequence[Any], of: int = 0, turn: int = 0) -> Iterator[tuple[Any, ...]]:
        """Every combination; on a software adapter, which compiles each for up to half a second, as few as meet each
        value of each axis.

        of: instead one combination in so many. turn: another one in each probe of a family, so that all are in the end.
        """
        if not self.gpu.info.is_software:
            yield from product(*axes)
        elif of:
            for places in product(*(range(len(axis)) for axis in axes)):
                if sum(places) % of == turn % of:
                    yield tuple(axis[place] for axis, place in zip(axes, places, strict=True))
        else:
            for k in range(max(map(len, axes))):
                yield tuple(axis[(k + turn) % len(axis)] for axis in axes)

    def repeated(self, *axes: Sequence[Any], of: int = 0, turn: int = 0) -> Iterator[tuple[Any, ...]]:
        """`some` in each round."""
        for _ in range(self.rounds):
            yield from self.some(*axes, of=of, turn=turn)

    def wgsl(self, name: str, source: str, inputs: Sequence[Array], output: tuple[str, int], groups: int) -> Array:
        """The output (numpy type, elements) of one dispatch of a module, see device.run_wgsl."""
        dtype = np.dtype(output[0])
        poisoned = np.full(output[1] * dtype.itemsize, POISON, np.uint8).view(dtype)
        return run_wgsl(self.gpu, name, self._drilled(source), inputs, poisoned, groups)

    def _drilled(self, source: str, inlined: Collection[str] = ()) -> str:
        meant = not self.only or self.only in inlined or f"// {self.only}\n" in source
        return re.sub(*self.planted, source) if isinstance(self.planted, tuple) and meant else source

    def node(
        self,
        op: str,
        version: int,
        inputs: Sequence[Array | None],
        constants: Mapping[int, Array] | None = None,
        outputs: int = 1,
        domain: str = "",
        **attributes: Attribute,
    ) -> list[Array]:
        """The outputs of a one-node graph on the adapter. constants: position -> an input that the host knows."""
        values = dict(constants or {})
        names = tuple(f"x{i}" if a is not None or i in values else "" for i, a in enumerate(inputs))
        feeds = {n: np.asarray(a) for n, a in zip(names, inputs, strict=True) if a is not None}
        node = Node(
            op, names, tuple(f"y{i}" for i in range(outputs)), domain=domain, attributes=attributes, version=version
        )
        return self.graph(graph_of(feeds, {f"x{i}": a for i, a in values.items()}, node), list(feeds.values()))

    def graph(self, graph: Graph, arrays: Sequence[Array], precision: str = "float32") -> list[Array]:
        """The outputs of a graph on the adapter. Sizes that it leaves open come with the arrays, which are its
        inputs."""
        program = Program(graph, Config(precision=precision, weights="packed"), self.gpu, composer=self._composed)
        try:
            return self._run(program, arrays)
        finally:
            program.close()

    def weight(self, graph: Graph, arrays: Sequence[Array], name: str) -> Array:
        """A constant of a graph as the device gives it back after a run, which may have packed it; less than 8 bits as
        bytes of them."""
        program = Program(graph, Config(weights="packed"), self.gpu, composer=self._composed)
        constant = packed(np.asarray(graph.constant(name)))
        try:
            self._run(program, arrays)
            self.shaders |= {step.kernel.shader for plan in program.plans for step in plan.inverses}
            array: Array = np.full(constant.nbytes, POISON, np.uint8).view(constant.dtype).reshape(constant.shape)
            self.gpu.free(
                self._tensor(np.full(array.nbytes, POISON, np.uint8), TensorType(UINT8, (array.nbytes,))).buffer
            )
            self.gpu.download(program.weight(name), 0, array.ctypes.data, array.nbytes)
            return array
        finally:
            program.close()

    def _run(self, program: Program, arrays: Sequence[Array]) -> list[Array]:
        types = [TensorType(dtype_of(a), a.shape) for a in arrays]
        plan = program.plan(types)
        kernels = [step.kernel for step in (*plan.prologue, *plan.steps) if isinstance(step, Dispatch)]
        self.shaders |= {k.shader for k in kernels} | {inner.shader for k in kernels for _, inner in k.inlined}
        inputs = [self._tensor(a, t) for a, t in zip(arrays, types, strict=True)]
        outputs = [self._tensor(np.full(t.nbytes + 3 & ~3, POISON, np.uint8), t) for t in plan.outputs]
        shapes = {k: t.shape for k, t in enumerate(plan.outputs)}

        def made(index: int, shape: Shape, over: int | None = None) -> Tensor:
            shapes[index] = shape  # what the data say, where they do
            return replace(outputs[index], type=TensorType(plan.outputs[index].dtype, shape))

        program.run(inputs, made)
        got = [np.empty(shapes[k], t.dtype.numpy) for k, t in enumerate(plan.outputs)]
        for tensor, array in zip(outputs, got, strict=True):
            self.gpu.download(tensor.buffer, 0, array.ctypes.data, array.nbytes)
        for tensor in (*inputs, *outputs):
            self.gpu.free(tensor.buffer)
        return got

    def _tensor(self, array: Array, kind: TensorType) -> Tensor:
        data = np.ascontiguousarray(array)
        buffer = self.gpu.allocate(data.nbytes)
        self.gpu.upload(buffer, 0, data.ctypes.data, data.nbytes)
        return Tensor(buffer, 0, kind)

    def _composed(self, kernel: Kernel, bindings: Bindings, limits: Limits) -> str:
        """In a drill, the fault is in the composed text of every kernel."""
        return self._drilled(compose(kernel, bindings, limits), [inner.shader for _, inner in kernel.inlined])


def graph_of(given: Mapping[str, Array], held: Mapping[str, Array], *nodes: Node) -> Graph:
    """Nodes as a graph, of which the last gives the outputs. given: what its inputs are like. held: constants."""
    values = {name: Value(name, dtype_of(a), a.shape) for name, a in given.items()}
    values |= {name: Value(name, dtype_of(a), a.shape, _giver(a)) for name, a in held.items()}
    return Graph("probe", tuple(given), nodes[-1].outputs, nodes, values)


def _giver(array: Array) -> Callable[[], Array]:
    return lambda: array


def reference(
    op: str,
    version: int,
    inputs: Sequence[Array | None],
    outputs: int = 1,
    **attributes: Any,
) -> list[Array]:
    """The same node by ONNX's reference implementation (numpy), float32 and float16 inputs as float64."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    wide = [a.astype(np.float64) if a is not None and a.dtype.kind == "f" else a for a in inputs]
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(wide)]
    node = onnx.helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    feeds = {n: a for n, a in zip(names, wide, strict=True) if a is not None}
    return [np.asarray(r) for r in ReferenceEvaluator(node, opsets={"": version}).run(None, feeds)]


def agree(what: str, got: Array, want: Array, tolerance: float = 2e-5) -> float:
    """The largest error relative to the largest value (for integers: must be equal). Raises WrongResultError, naming
    the element."""
    if got.shape != want.shape:
        raise WrongResultError(f"{what}: got shape {list(got.shape)}, expected {list(want.shape)}")
    if not got.size:
        return 0.0
    a, b = got.astype(np.float64), want.astype(np.float64)
    exact = got.dtype.kind in "biu" and want.dtype.kind in "biu"
    same = (got == want) if exact else (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=1e-30)
        error = np.where(same, 0.0, np.nan_to_num(np.abs(a - b) / scale, nan=np.inf, posinf=np.inf))
    worst = float(error.max())
    bound = 0.0 if exact else tolerance
    if worst > bound:
        at = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        raise WrongResultError(
            f"{what}: element {list(at)} of {list(got.shape)}: got {got[at]}, expected {want[at]}; "
            f"{int((error > bound).sum())} of {error.size} elements differ"
        )
    return worst


def slower(times: Mapping[str, float], factor: float) -> None:
    """Raises DeviceError for a variant that takes `factor` times as long as the fastest of its siblings."""
    best = min(times, key=lambda name: times[name])
    for name, seconds in times.items():
        if seconds > factor * times[best]:
            raise DeviceError(
                f"slow: {name} takes {seconds * 1e3:.2f} ms for what {best} does in {times[best] * 1e3:.2f} ms"
            )


Status = Literal["PASS", "FAIL", "CRASH", "TIMEOUT", "UNSUPPORTED", "NOT_RUN"]


def solve(trial: Trial, problem: Problem, values: Sequence[Array | None] = (), back: bool = False) -> None:
    """A problem on the adapter, against the reference. values: of its inputs; drawn where there are none. back: also what
    the model holds, as the device gives it back after a run. Raises WrongResultError, naming op, shapes and attributes;
    Unsupported where the adapter lacks an element type.
    """
    values = values or problem.draw(trial.rng)
    graph, feeds = problem.graph(values)
    try:
        results = trial.graph(graph, feeds)
    except UnsupportedNodeError as error:
        if error.code != Code.DTYPE:
            raise
        raise Unsupported(error.reason) from error
    expected = reference(problem.op, problem.version, values, problem.outputs, **problem.attributes)
    for k, (got, want) in enumerate(zip(results, map(problem.stored, expected), strict=True)):
        exact = want.astype(got.dtype) if got.dtype.kind in "biu" else want
        agree(f"{problem} output {k}", got, exact, problem.tolerance)
    for name, value in zip(problem.names, values, strict=True) if back else ():
        if value is not None and graph.values[name].is_constant:
            agree(f"{problem}: {name} given back", trial.weight(graph, feeds, name), value, 0.0)


def pairs_of(problems: Iterable[Problem]) -> list[tuple[Problem, str]]:
    """Each problem with each of its forms; with an empty one where it has none."""
    return [(problem, form) for problem in problems for form in problem.forms or ("",)]


def solves(
    name: str, *problems: Problem, of: int = 1, turn: int = 0, back: bool = False, about: str = "", **row: Any
) -> None:
    """Adds the probe of problems, each in each of its forms; on a software adapter of one in `of`. row: as of `probe`."""
    pairs = pairs_of(problems)
    said = f"{len(pairs)} problem{'s' if len(pairs) > 1 else ''} of {', '.join(sorted({p.op for p in problems}))}"

    def check(trial: Trial) -> str:
        for ((problem, form),) in trial.repeated(pairs, of=of, turn=turn):
            with forced(form):
                solve(trial, problem, back=back)
        return said

    check.__doc__ = about or f"{said}."
    probe(name, "kernels", problems=problems, **row)(check)
