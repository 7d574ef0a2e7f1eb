"""Recurrent layers whose weights are too many for the registers of a workgroup: a dispatch a step, over all of the
GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT32, UINT32, TensorType
from ort_gpu_ep.kernels.records import KernelCall, ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops.indexing import are_lengths
from ort_gpu_ep.ops.recurrent_layer import CELLS, GRU, LSTM, ROUNDED, Cell, Sizes, output_types, problem_of

SHADER = "recurrent_steps.wgsl"
TEAM = 32
"""Lanes that read a row of the recurrent weights together: a subgroup of most GPUs."""
TEAMS = 4
"""Of a workgroup, at most."""

STEPWISE: Mapping[str, int] = {f"stepwise, {units}": units for units in (1, 2, 4)}
"""Forms of a layer -> hidden units of which a team has one gate."""

MAX_ROWS = 4
"""Of the batch, with which a team multiplies what it has read of the weights."""


def _loop_bound(k: KernelCall) -> int:
    """Each turn: a bias and a sum of each gate, a row of weights, the sums of a team."""
    return ceil_div(k["B"], k["ROWS"] * k["RUNS"]) * (1 + 2 * (k["GATES"] + 1) + ceil_div(k["H"], 4 * TEAM) + 10)


record(
    SHADER,
    "recurrent_steps",
    loop_bound=_loop_bound,
    flops=lambda k: 2 * k["T"] * k["B"] * k["DIRECTIONS"] * k["GATES"] * k["H"] * k["H"],
    steps=lambda k: k["T"],
    problems=[problem_of(op_type, hidden, *STEPWISE) for op_type in CELLS for hidden in (33, 130, 8)],
)


def estimates(node: BoundNode, cell: Cell, sizes: Sizes) -> dict[str, float]:
    """Nanoseconds of each form that the adapter can run, of weights that are not packed."""
    limits, bindings = node.target.limits, 4 + sum(map(node.has, (4, 5, 6))) + sum(map(node.wants, range(3)))
    bindings += node.has(4) and not are_lengths(node.input(4), sizes.steps)
    if node.attr(ROUNDED) or not limits.allow(SHADER) or bindings > limits.max_buffers_per_stage:
        return {}
    return estimates_of(node.target, sizes, 2 if resets_first(node, cell) else 1)


def resets_first(node: BoundNode, cell: Cell) -> bool:
    """Whether a step is two dispatches."""
    return cell is GRU and not node.attr("linear_before_reset")


def estimates_of(target: Target, sizes: Sizes, dispatches: int) -> dict[str, float]:
    """dispatches: of a step."""
    fitting = {form: units for form, units in STEPWISE.items() if units == 1 or 2 * units <= sizes.hidden}
    return {form: _estimate_ns(target, sizes, units, dispatches) for form, units in fitting.items()}


def _estimate_ns(target: Target, sizes: Sizes, units: int, dispatches: int) -> float:
    """A step: a dispatch or two, what waits in it for memory, the recurrent weights from the cache, as often as rows of
    the batch ask."""
    by, batch = target.figures, hint(sizes.batch)
    weights = sizes.directions * sizes.gates * sizes.hidden * sizes.hidden
    in_cache = 4 * weights <= by.cache_nbytes
    # the state's elements serve the units of a team
    more = 4 * weights * (-(-batch // MAX_ROWS) - 1) * (0.9 + 0.5 / units)
    reads_ns = (
        4 * weights / (by.cache_bytes_per_ns if in_cache else by.uncached_bytes_per_ns)
        + more / by.uncached_bytes_per_ns
    )
    groups = sizes.directions * -(-sizes.hidden // (_share(sizes) * units))
    work_ns = max(reads_ns, weights * batch / (by.units * by.fma_per_ns)) + by.stepwise_group_ns * groups / by.units
    work_ns += by.stepwise_unit_ns * units * (1 + ceil_div(sizes.hidden, 4 * TEAM))
    return float(
        hint(sizes.steps) * (dispatches * (by.dispatch_ns + by.stepwise_wait_ns) + work_ns)
        + by.dispatch_ns
        + by.input_ns
    )


def _share(sizes: Sizes) -> int:
    """Units, or groups of them, that the teams of a workgroup share, each gate of them being a team's."""
    return max(1, min(TEAMS // sizes.gates, sizes.hidden))


def _teams_are_subgroups(target: Target) -> bool:
    return target.limits.subgroup_size == TEAM and target.limits.allow(SHADER, "subgroup")


@dataclass(frozen=True)
class Shares:
    """How workgroups share a step: each has `share` times `units` hidden units and in each of its turns so many rows of
    the batch, and the rows are `runs` workgroups'. subgroups: whether a team is a subgroup.
    """

    gates: int
    hidden: int
    share: int
    units: int
    rows: int
    runs: int
    groups: int
    subgroups: bool

    @property
    def workgroup_size(self) -> int:
        return self.share * self.gates * TEAM

    @property
    def workgroup_nbytes(self) -> int:
        sums = self.units * self.rows
        return 4 * sums * (self.share * self.gates + (0 if self.subgroups else self.workgroup_size))

    @property
    def consts(self) -> dict[str, Const]:
        return {
            "ROWS": self.rows,
            "UNITS": self.units,
            "SHARE": self.share,
            "RUNS": self.runs,
            "SUBGROUPS": self.subgroups,
            "VECTORS": bool(self.vectors),
        }

    @property
    def vectors(self) -> list[str]:
        """Rows of weights that are whole vectors are read so."""
        return ["packed"] if self.hidden % 4 == 0 else []

    @property
    def features(self) -> list[str]:
        return ["subgroup"] if self.subgroups else []


def shares_of(target: Target, sizes: Sizes, units: int) -> Shares:
    """units: of a team."""
    batch, share = hint(sizes.batch), _share(sizes)
    rows = 1 if batch == 1 else 2 if batch == 2 else MAX_ROWS
    blocks = sizes.directions * -(-sizes.hidden // (share * units))
    runs = max(1, min(-(-2 * target.figures.units // blocks), -(-batch // rows)))
    return Shares(sizes.gates, sizes.hidden, share, units, rows, runs, blocks * runs, _teams_are_subgroups(target))


def packing_index(sizes: Sizes) -> Strided:
    """R as it is."""
    return Strided((sizes.directions * sizes.gates * sizes.hidden * sizes.hidden,), (1,))


def stepwise(
    node: BoundNode,
    cell: Cell,
    sizes: Sizes,
    choice: Choice,
    weights: Kernel,
    product: Lowering,
    consts: Mapping[str, Const],
) -> Lowering:
    """The weights in one buffer, the product of the input, the steps. weights: packs them. consts: what every form
    takes."""
    h, shares = sizes.hidden, shares_of(node.target, sizes, STEPWISE[choice.form])
    outputs = {name: i for i, name in enumerate(("y", "yh", "yc")) if node.wants(i)}
    types = output_types(node, sizes)
    halves = 2 + (2 if resets_first(node, cell) else cell is LSTM)
    ticks, state = (
        TensorType(UINT32, (shares.groups,)),
        TensorType(FLOAT32, (halves * sizes.directions * sizes.batch * h,)),
    )
    reads: dict[str, int | str] = {
        "pre": "pre",
        "packed": "packed",
        **{n: i for n, i in (("seq", 4), ("h0", 5), ("c", 6)) if node.has(i)},
    }
    steps = kernel(
        SHADER,
        [*(types[i] for i in outputs.values()), ticks, state],
        consts={**consts, **shares.consts, **{f"WANT_{name.upper()}": name in outputs for name in ("y", "yh", "yc")}},
        groups=shares.groups,
        workgroup_size=shares.workgroup_size,
        workgroup_nbytes=shares.workgroup_nbytes,
        reads=reads,
        writes={**outputs, "ticks": "ticks", "state": "state"},
        vectors=shares.vectors,
        choice=choice,
        features=shares.features,
        repeats=sizes.steps * (2 if resets_first(node, cell) else 1),
        reports=node.has(4) and not are_lengths(node.input(4), sizes.steps),
    )
    temps = (("packed", weights.outputs[0]), *product.temps, ("ticks", ticks), ("state", state))
    results = tuple(t if node.wants(i) else None for i, t in enumerate(types[: len(node.node.outputs)]))
    return Lowering(results, (weights, *product.kernels, steps), temps, kept=("ticks",))
