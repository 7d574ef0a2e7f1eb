"""winograd*.wgsl: convolutions of 3 x 3 in tiles; against float64 sums, and where they are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import Graph
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES, SOFTWARE_FIGURES, figures_for
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import LAST_ARRIVING, Tuned
from ort_gpu_ep.ops import winograd
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from ort_gpu_ep.scheduler.template import make_template
from tests.direct import opened, run_program
from tests.ops.test_tiles import Array, check_conv, conv_graph, expected

PADS = [1, 1, 1, 1]
ROOMY = Limits(
    max_workgroup_nbytes=49152, max_invocations=1024, features=frozenset({LAST_ARRIVING}), max_binding_nbytes=1 << 31
)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """An adapter that takes Winograd's convolution wherever it can."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, figures=replace(gpu.limits.figures, winograd_factor=1e-9)))
    return gpu


def layer(x: tuple[int, ...], filters: int, seed: int = 0) -> tuple[Array, Array]:
    """An image [N, H, W, C] as after Relu, and weights, standard-normal."""
    rng = np.random.default_rng(seed)
    return np.maximum(rng.normal(size=x), 0).astype(np.float32), rng.normal(size=(filters, x[3], 3, 3)).astype(
        np.float32
    )


def shaders(graph: Graph, limits: Limits) -> list[str]:
    plan = make_plan(graph, {n: TensorType(FLOAT32, graph.values[n].shape) for n in graph.inputs}, limits)  # type: ignore[arg-type]
    return [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]


KERNELS = ["winograd_input.wgsl", "product.wgsl", "winograd_output.wgsl"]

CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 32, 12, 10), (32, 32, 3, 3), {"pads": PADS}),
    ((1, 36, 9, 11), (44, 36, 3, 3), {"pads": [1, 0, 2, 1]}),  # K that fills no step, M that fills no tile
    ((3, 8, 3, 3), (4, 8, 3, 3), {}),  # a single output of an image
    ((1, 8, 9, 9), (8, 8, 3, 3), {"pads": [2, 3, 2, 3]}),  # outputs that see padding alone
    ((1, 12, 7, 15), (8, 12, 3, 3), {"auto_pad": "SAME_UPPER", "pads": PADS}),
]


@pytest.mark.parametrize("every_size_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVS, ids=str)
def test_convolutions(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], every_size_open: bool, taken: Gpu
) -> None:
    check_conv(x, w, every_size_open=every_size_open, **attributes)
    check_conv(x, w, bias=False, residual=True, every_size_open=every_size_open, **attributes)


@pytest.mark.parametrize("channels", [64, 512])
def test_the_error(channels: int, taken: Gpu) -> None:
    """Relative to float64, next to that of the sum tap by tap."""
    x, w = layer((1, 7, 7, channels), 16)
    want, errors = expected(x.transpose(0, 3, 1, 2), w, None, None, {"pads": PADS}), {}
    for is_on in (True, False):
        program = Program(conv_graph(x, w, None, None, pads=PADS), Config(winograd=is_on), taken)
        errors[is_on] = np.linalg.norm(run_program(program, {"x": x})[0] - want) / np.linalg.norm(want)
        program.close()
    assert 0 < errors[False] < errors[True] < 2e-6


def test_where_it_is_taken() -> None:
    """Where the estimate says that it wins: with many tiles, on hardware."""

    def of(batch: int, limits: Limits = ROOMY, strides: int = 1) -> list[str]:
        x, w = np.zeros((batch, 28, 28, 128), np.float32), np.zeros((128, 128, 3, 3), np.float32)
        return shaders(conv_graph(x, w, None, None, pads=PADS, strides=[strides] * 2), limits)

    assert of(32) == of(8) == of(32, replace(ROOMY, figures=figures_for("discrete", None, "amd"))) == KERNELS
    assert of(32, replace(ROOMY, figures=figures_for("discrete", None, "intel"))) == ["product.wgsl"], (
        "its transforms would spill"
    )
    assert of(1) == of(32, replace(ROOMY, figures=SOFTWARE_FIGURES)) == of(32, strides=2) == ["product.wgsl"]
    for shader in winograd.SHADERS:
        assert of(32, replace(ROOMY, disabled=((shader, "a fault"),))) == ["product.wgsl"]
    assert of(32, ROOMY.of(Config(winograd=False))) == ["product.wgsl"]
    assert of(512) == ["product.wgsl"], "more memory than it may take"


def test_sizes_that_a_run_brings() -> None:
    """A plan holds for few images, or for many: those on its side of where the better form changes."""
    x, w = layer((1, 28, 28, 128), 128)
    graph = conv_graph(x, w, None, None, pads=PADS)
    open_batch = replace(graph, values={**graph.values, "x": replace(graph.values["x"], shape=(None, *x.shape[1:]))})

    def types(batch: int) -> list[TensorType]:
        return [TensorType(FLOAT32, (batch, *x.shape[1:]))]

    few, many = (make_template(open_batch, types(batch), ROOMY) for batch in (1, 32))
    first = [next(step.kernel.shader for step in t.plan.steps if isinstance(step, Dispatch)) for t in (few, many)]
    assert first == ["product.wgsl", KERNELS[0]]
    for batch in (1, 8, 16, 100):
        assert (few.fill(types(batch)) is not None) == (batch == 1) != (many.fill(types(batch)) is not None)
    assert make_template(open_batch, types(0), ROOMY).fill(types(0)) is not None
    never = make_template(open_batch, types(32), replace(ROOMY, figures=SOFTWARE_FIGURES))
    assert never.fill(types(1)) is not None


def test_a_measured_form_is_taken() -> None:
    graph = conv_graph(*layer((1, 8, 8, 32), 32), None, None, pads=PADS)
    plan = make_plan(graph, {"x": TensorType(FLOAT32, (1, 8, 8, 32))}, Limits())
    (choice,) = [step.kernel.choice for step in plan.steps if isinstance(step, Dispatch) and step.kernel.choice]
    assert not choice.form.startswith(winograd.FORM)
    form = next(form for form in choice.forms if form.startswith(winograd.FORM))
    assert shaders(graph, Limits(tuned=Tuned({choice.key: form}))) == KERNELS
    slower = replace(DEFAULT_FIGURES, winograd_factor=1e9)
    assert shaders(graph, Limits(tuned=Tuned({choice.key: form}), figures=slower)) == KERNELS


def test_weights_that_a_run_brings_are_summed_tap_by_tap() -> None:
    x, w = layer((32, 28, 28, 128), 128)
    graph = conv_graph(x, w, None, None, pads=PADS)
    given = replace(graph.values["w"], load=None)
    brought = replace(graph, inputs=("x", "w"), values={**graph.values, "w": given})
    assert "winograd_input.wgsl" not in shaders(brought, Limits())


def test_weights_are_transformed_once(taken: Gpu) -> None:
    """For all runs and sizes; those of the model stay beside them, for plans that sum tap by tap."""
    x, w = layer((2, 9, 6, 12), 8)
    program = Program(opened(conv_graph(x, w, None, None, pads=PADS)), Config(), taken)
    try:
        for images in (x, x[:1, :5], np.concatenate([x, x])):
            want = expected(images.transpose(0, 3, 1, 2), w, None, None, {"pads": PADS})
            np.testing.assert_allclose(run_program(program, {"x": images})[0], want, rtol=0, atol=1e-4)
        for plan in program.plans:
            assert [step.kernel.shader for step in plan.prologue] == ["winograd_weights.wgsl"]
            assert [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)] == KERNELS
        assert 0 <= program.weight_nbytes - (w.nbytes + 36 * 32 * 8 * 4) < 512
    finally:
        program.close()


@pytest.mark.parametrize("is_on", [True, False])
def test_infinity_reaches_the_tiles_that_see_it(is_on: bool, taken: Gpu) -> None:
    """docs/drop-in.md says so. Tap by tap it reaches the nine outputs whose windows have it."""
    x, w = layer((1, 12, 12, 8), 4)
    x[0, 6, 5] = np.inf
    program = Program(conv_graph(x, w, None, None, pads=PADS), Config(winograd=is_on), taken)
    try:
        (got,) = run_program(program, {"x": x})
    finally:
        program.close()
    rows, columns, _ = np.nonzero(~np.isfinite(got[0]))
    reached = {(int(a), int(b)) for a, b in zip(rows, columns, strict=True)}
    windows = {(a, b) for a in (5, 6, 7) for b in (4, 5, 6)}
    tile = {(a, b) for a in range(4, 8) for b in range(4, 8)}
    assert reached <= tile and windows <= reached if is_on else reached == windows
