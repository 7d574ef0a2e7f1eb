"""What is measured on this machine's adapter, and what is made of the times: those are told, since a busy machine's say
anything.

Whether predictions come true on a real adapter: `python -m benchmarks.predictions`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.predictions import CASES, predicted_s
from ort_gpu_ep.calibration.measure import SIZES_NBYTES, Bench, Job, Sample, curves, measure, works_of
from ort_gpu_ep.calibration.workloads import WORKLOADS, Workload, random, single
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Buffer, Gpu
from ort_gpu_ep.device.timing import Timer
from ort_gpu_ep.ir.graph import Graph, Parent
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import Roofs
from ort_gpu_ep.kernels.lowering import facts_of, walk
from ort_gpu_ep.kernels.profile import GUESSED, Curve, Profile
from ort_gpu_ep.kernels.records import FAMILIES, RECORDS, Work
from ort_gpu_ep.kernels.registry import Limits, Lowering
from ort_gpu_ep.partitioner import partition
from ort_gpu_ep.partitioner.costs import Costs
from tests.patience import Clock
from tests.unit.graphs import graph_of

MEASURE = sys.modules[Bench.__module__]
"""The module: the package has a function of the same name."""

ENOUGH_S = 1e6
"""A budget that is not gone before all is measured."""


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu.open(Config())


class Machine:
    """Told in place of the adapter's times and the host's clock. compile_s: of each graph. truth: what its runs take.

    spent: seconds since the beginning.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, truth: Profile, compile_s: float) -> None:
        self.clock, self.truth = Clock(monkeypatch, MEASURE), truth
        self.began_s = self.clock.now_s
        made = Job.__init__

        def compiled(job: Job, gpu: Gpu, graph: Graph) -> None:
            self.clock.rest(compile_s)
            made(job, gpu, graph)
            job.told_s = self.of(graph, gpu.limits)  # type: ignore[attr-defined]

        monkeypatch.setattr(Job, "__init__", compiled)
        monkeypatch.setattr(Job, "run", lambda job: self.clock.rest(job.told_s))
        monkeypatch.setattr(Job, "start", lambda job: None)
        monkeypatch.setattr(
            Gpu, "upload", lambda gpu, buffer, offset, address, nbytes: self.clock.rest(truth.upload_s(nbytes))
        )
        monkeypatch.setattr(
            Gpu,
            "download",
            lambda gpu, buffer, offset, address, nbytes: self.clock.rest(truth.run_s + truth.download_s(nbytes)),
        )
        monkeypatch.setattr(MEASURE, "Timer", lambda gpu: None)

    def of(self, graph: Graph, limits: Limits) -> float:
        """Seconds of a run."""
        if len(graph.nodes) > 1 or graph.nodes[0].op == "Neg":  # a chain; the empty run is one of length 1
            return self.truth.run_s + (len(graph.nodes) - 1) * self.truth.dispatch_s
        works = works_of(graph, limits)
        return self.truth.run_s + (len(works) - 1) * self.truth.dispatch_s + sum(self.truth.work_s(w) for w in works)

    @property
    def spent_s(self) -> float:
        return self.clock.now_s - self.began_s


def told(scale: float, **slower: float) -> Profile:
    """An adapter on which everything takes so many times as long as guessed, the kernels of some families longer than
    that."""

    def scaled(curve: Curve, by: float = 1.0) -> Curve:
        return Curve(tuple((amount, scale * by * seconds) for amount, seconds in curve.points))

    families = {
        family: scaled(GUESSED.curve(family), slower.get(family, 1.0)) for family in {w.family for w in WORKLOADS}
    }
    return Profile(
        "told",
        scale * GUESSED.run_s,
        scale * GUESSED.dispatch_s,
        scaled(GUESSED.upload),
        scaled(GUESSED.download),
        families,
    )


RATES = {family: 1.0 + 0.5 * index for index, family in enumerate(sorted(FAMILIES.keys() - {"product", "elementwise"}))}
"""A rate of its own for each family: what one is charged for another's work shows. Families that others' workloads
need, too, have 1."""


@pytest.mark.parametrize(("scale", "compile_s"), [(1.0, 0.0), (1.0, 0.3), (10.0, 0.1), (30.0, 0.3)])
def test_it_takes_three_seconds_at_most(
    scale: float, compile_s: float, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what compiling the graphs takes that are measured in any case, and half a second more."""
    machine = Machine(monkeypatch, told(scale), compile_s)
    found = measure(gpu)
    assert machine.spent_s < max(3.0, 4 * compile_s) + 0.5, (machine.spent_s, sorted(found.families))


def test_what_the_clock_says_is_what_the_profile_says(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = told(1.0, **RATES)
    Machine(monkeypatch, truth, 0.0)
    found = measure(gpu, ENOUGH_S)
    assert (found.run_s, found.dispatch_s) == (
        pytest.approx(truth.run_s - truth.dispatch_s),
        pytest.approx(truth.dispatch_s),
    )
    assert set(found.families) == {w.family for w in WORKLOADS}
    for nbytes in SIZES_NBYTES:
        assert found.upload_s(nbytes) == pytest.approx(truth.upload_s(nbytes))
        assert found.download_s(nbytes) == pytest.approx(truth.download_s(nbytes))
    for graph in CASES.values():
        assert predicted_s(found, graph) == pytest.approx(predicted_s(truth, graph), rel=0.3), graph.name


def test_every_quantity_is_there(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """By this machine's clocks. Curves refuse what is not positive or descends."""
    monkeypatch.setattr(MEASURE, "LONG_S", 5e-3)  # smaller sizes do
    profile = measure(gpu, ENOUGH_S)
    assert profile.adapter == gpu.info.name
    assert tuple(n for n, _ in profile.upload.points) == tuple(n for n, _ in profile.download.points) == SIZES_NBYTES
    assert {w.family for w in WORKLOADS} == set(profile.families)


STANDS_FOR = {
    "product": "product.wgsl",
    "elementwise": "elementwise.wgsl",
    "reduction_held": "softmax_rows.wgsl",
    "reduction": "reduce.wgsl",
    "matvec": "matvec_columns.wgsl",
    "direct": "conv_direct.wgsl",
    "recurrent": "recurrent.wgsl",
    "recurrent_held": "recurrent_held.wgsl",
    "recurrent_steps": "recurrent_steps.wgsl",
    "movement": "transpose.wgsl",
    "pool": "pool.wgsl",
    "gather": "gather.wgsl",
    "sorting": "topk_sort.wgsl",
}


@pytest.mark.parametrize(
    "limits", [Limits(max_invocations=1024, max_workgroup_nbytes=48 << 10), None], ids=["a GPU", "this adapter"]
)
def test_a_family_is_measured_by_the_kernel_that_stands_for_it(limits: Limits | None, gpu: Gpu) -> None:
    """Not by another that a new way to lower its op brought: Softmax once measured the reductions, then its rows went
    into registers."""
    found = {}
    for workload in WORKLOADS:
        graph = workload.graph(workload.sizes[0])
        _, answer, _ = next(
            walk(graph, facts_of(graph, {"x": TensorType(FLOAT32, graph.values["x"].shape)}), limits or gpu.limits)
        )
        assert isinstance(answer, Lowering)
        found[workload.family] = [k.shader for k in answer.per_run if RECORDS[k.shader].family == workload.family]
    assert found == {family: [shader] for family, shader in STANDS_FOR.items()}


@pytest.mark.parametrize(
    ("slow", "on_cpu"),
    [("gather", []), ("reduction", ["ReduceSum"]), ("reduction_held", ["Softmax"]), ("product", ["MatMul"])],
)
def test_what_a_family_takes_decides_where_its_nodes_run(
    slow: str, on_cpu: list[str], gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told times become a profile, and that an assignment: what an adapter is slow at leaves it, and nothing else
    does."""
    Machine(monkeypatch, told(1.0, **{slow: 3000.0}), 0.0)
    text = "(float[2048, 2048] x) => (y, e, f) { y = MatMul(x, w) e = Softmax(y) f = ReduceSum(y, axes) }"
    costs = Costs(measure(gpu, ENOUGH_S), {(0, "MatMul"): 50e-3, (1, "Softmax"): 5e-3, (2, "ReduceSum"): 5e-3})
    graph = graph_of(text, {"w": random((2048, 2048)), "axes": np.array([1])})
    report = partition(graph, Config(placement="auto"), Limits(), software=False, costs=costs).report
    assert [n.op for n in report.nodes if n.device == "cpu"] == on_cpu


BODY = (
    "(int64 i, bool go, float[1024, 1024] v) => (bool going, float[1024, 1024] after) { going = Identity(go)  after "
    "= MatMul(v, w) }"
)


@pytest.mark.parametrize(
    ("slower", "roofs", "on_gpu"),
    [(1.0, Roofs(), True), (1.0, Roofs(60e12, 4e12), True), (100.0, Roofs(), False), (1.0, Roofs(0.2e12, 3e10), False)],
)
def test_what_is_measured_first_decides_where_bodies_run(
    slower: float,
    roofs: Roofs,
    on_gpu: bool,
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each turn of this one copies 4 MiB there and back. A slow readback keeps it on the CPU, and so do roofs under
    what an H200 reaches."""
    truth = told(1.0)
    back = Curve(tuple((amount, slower * seconds) for amount, seconds in truth.download.points))
    machine = Machine(monkeypatch, replace(truth, download=back), 0.0)
    first = replace(measure(gpu, whole=False, wake_s=0.0), roofs=roofs)
    assert not first.is_whole
    assert machine.spent_s < 0.1 * slower
    assert (first.upload_s(4 << 20), first.download_s(4 << 20)) == (
        pytest.approx(truth.upload_s(4 << 20)),
        pytest.approx(back.at(4 << 20)),
    )
    body = replace(graph_of(BODY, {"w": random((1024, 1024))}), nested=True, parent=Parent("Loop", ("y",)))
    report = partition(body, Config(placement="gpu"), Limits(), software=False, costs=Costs(first)).report
    assert ["MatMul" in n.op and n.device == "gpu" for n in report.nodes if n.op != "Identity"] == [on_gpu]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.family)
def test_a_workload_is_of_its_family_and_its_inputs_are_not_zero(workload: Workload, gpu: Gpu) -> None:
    """Zeros may be faster than numbers: the hardware saves power, a compiler saves work."""
    job = Job(gpu, workload.graph(workload.sizes[0]))
    job.run()
    families = {RECORDS[step.kernel.shader].family for step in job.plan.steps if hasattr(step, "kernel")}
    got = np.empty(job.outputs[0].type.shape, np.float32)
    gpu.download(job.outputs[0].buffer, 0, got.ctypes.data, got.nbytes)
    job.close()
    assert workload.family in families
    assert np.isfinite(got).all()
    assert np.count_nonzero(got) > 0.9 * got.size


def test_what_runs_once_is_no_work_of_a_run() -> None:
    """The weights of this layer are packed before its first run."""
    layer = next(w for w in WORKLOADS if w.family == "recurrent_held")
    assert [work.family for work in works_of(layer.graph(32), Limits(max_invocations=1024))] == ["recurrent_held"]


def test_a_family_without_a_kernel_here_is_left_out(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its sibling answers, and no time of the sibling's kernels is taken for its own."""
    layer = next(w for w in WORKLOADS if w.family == "recurrent_held")
    monkeypatch.setattr(MEASURE, "WORKLOADS", (replace(layer, sizes=(512,)),))
    assert "recurrent_held" not in measure(gpu).families


def test_sizes_grow_and_every_family_has_a_workload() -> None:
    for workload in WORKLOADS:
        assert workload.sizes == tuple(sorted(set(workload.sizes)))
    assert {w.family for w in WORKLOADS} == {r.family for r in RECORDS.values()}


def test_a_family_is_charged_for_its_own_kernels_only() -> None:
    """A recurrent layer's product and its packing are priced by themselves; a step of it is its part of what is
    left."""
    products = [Sample("product", (Work("product", n, 1),), n * 1e-9) for n in (1000, 4000)]
    layer = Sample("recurrent", (Work("product", 4000, 1), Work("recurrent", 800, 1, steps=4)), 24e-6)
    assert curves([layer, *products])["recurrent"].points == ((200, pytest.approx(5e-6)),)
    dear = Sample("recurrent", (Work("product", 40_000, 1), Work("recurrent", 800, 1, steps=4)), 24e-6)
    assert curves([dear, *products])["recurrent"].points == ((200, pytest.approx(3e-6)),)


def test_a_small_budget_leaves_families_to_their_siblings(gpu: Gpu) -> None:
    """Transfers, dispatches, and what no sibling can stand in for are measured in any case: a guess would be about
    another adapter."""
    hurried = measure(gpu, budget_s=1e-3)
    assert set(hurried.families) == {"product", "elementwise"}
    assert hurried.curve("gather") is hurried.families["elementwise"]
    assert hurried.upload != GUESSED.upload


def test_a_kernel_that_is_out_of_use_is_left_out(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, disabled=(("reduce.wgsl", "a test"),)))
    found = measure(gpu)
    assert "elementwise" in found.families
    assert "reduction" not in found.families
    assert found.curve("reduction") is found.families["elementwise"]


def test_progress_is_told(gpu: Gpu) -> None:
    said: list[tuple[str, float]] = []
    measure(gpu, 0.5, lambda what, done: said.append((what, done)))
    assert said[0][0] == "empty runs and dispatches"
    assert said[-1][0] == "done"
    assert all(0 <= done <= 1 for _, done in said)
    assert [done for _, done in said] == sorted(done for _, done in said)


def test_every_buffer_is_given_back(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a family ends early: a Buffer that is merely dropped would wait for the garbage collector.

    The budget is gone in the middle of the fifth workload, however busy the machine is.
    """
    taken, begun = list[int](), list[str]()
    monkeypatch.setattr(Bench, "spent", property(lambda self: 2.0 if len(begun) >= 5 else 0.0))

    def begins(what: str, _: float) -> None:
        begun.extend([what] if ", size" in what else [])

    allocate, free = gpu.allocate, gpu.free

    def counted(*wanted: Any) -> Buffer:
        buffer = allocate(*wanted)
        taken.append(id(buffer))
        kept.append(buffer)
        return buffer

    def freed(buffer: Buffer) -> None:
        taken.remove(id(buffer))
        free(buffer)

    kept: list[Buffer] = []  # so that no id is used twice
    monkeypatch.setattr(gpu, "allocate", counted)
    monkeypatch.setattr(gpu, "free", freed)
    assert len(measure(gpu, 1e6, begins).families) == 5
    assert len(kept) > 20
    assert taken == []


def test_a_benchmark_keeps_its_timer(gpu: Gpu) -> None:
    marker = object()
    gpu.timer = marker  # type: ignore[assignment]
    try:
        measure(gpu, 0.05)
        assert gpu.timer is marker
    finally:
        gpu.timer = None


@pytest.mark.parametrize("ticks", [0.0, -1.0, 1e9])
def test_timestamps_that_can_not_be_are_not_believed(ticks: float, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still, runs backwards, or has seen more than the host has waited: the host's clock stands
    in."""
    bench = Bench(gpu, ENOUGH_S, None)
    monkeypatch.setattr(Timer, "read_s", lambda self: ticks)
    monkeypatch.setattr(bench, "added_s", lambda action: 42.0)
    assert bench.work_s(bench.empty) == 42.0
    assert gpu.timer is None
    bench.empty.close()


def test_the_gpus_clock_is_asked(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    job, bench = Job(gpu, single("MatMul", (256, 256), [random((256, 256))])), Bench(gpu, ENOUGH_S, None)
    times = iter([5e-6, 4e-6, 6e-6, 5e-6, 5e-6, 5e-6, 5e-6, *[1e-6] * 7])
    monkeypatch.setattr(Timer, "read_s", lambda self: next(times))
    assert bench.work_s(job) == pytest.approx(3e-6)
    assert gpu.timer is None
    bench.empty.close()
    job.close()


def test_the_empty_run_takes_its_turn(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of each counts, whatever disturbed the others. The clock is told: a busy machine's says anything."""
    bench = Bench(gpu, ENOUGH_S, None)
    empties_s, actions_s = iter([9e-3, 1e-3, 2e-3]), iter([8e-3, 30e-3, 3e-3])
    turns: list[str] = []

    def told(action: Callable[[], object]) -> float:
        turns.append("empty" if action == bench.empty.run else "action")
        return next(empties_s if turns[-1] == "empty" else actions_s)

    monkeypatch.setattr(MEASURE, "_time", told)
    before = len(bench.empties_s)
    assert bench.added_s(lambda: None) == pytest.approx(2e-3)
    bench.empty.close()
    assert turns == ["empty", "action"] * 3
    assert bench.empties_s[before:] == [9e-3, 1e-3, 2e-3]
