"""Dawn by its package, on a driver that has matrix units: the kernels that are emulated elsewhere, executed
(scripts/dawn.sh)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health.probe import PROBES, Trial
from ort_gpu_ep.health.probes.matrix_units import in_tile
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.target import (
    LAST_ARRIVING,
    MATRIX_ATTENTION,
    MATRIX_BYTES,
    MATRIX_UNITS,
    no_byte_units,
    no_matrix_units,
)
from ort_gpu_ep.ops import attention_units, matrix_units, unit_bytes
from ort_gpu_ep.ops.attention_units import UnitForm
from ort_gpu_ep.webgpu import choice
from ort_gpu_ep.webgpu.library import KIND, NAME
from tests.ops import test_attention_units as heads
from tests.ops import test_matrix_units as products
from tests.ops import test_unit_bytes as of_bytes
from tests.ops import test_unit_packed as packed
from tests.ops import test_unit_vectors as few
from tests.ops import test_unit_windows as windows
from tests.ops.test_matrix_units import QUICK
from tests.ops.test_tiles import expected
from tests.ops.test_unit_windows import in_parts  # noqa: F401  a fixture

pytestmark = pytest.mark.dawn


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    """Units count as shown here: what they make is compared."""
    monkeypatch.setattr(unit_bytes, "TILES", (of_bytes.QUICK,))
    monkeypatch.setattr(attention_units, "FORMS", (heads.QUICK,))
    gpu = Gpu.open(Config())
    usual = gpu.limits
    gpu.limits = replace(usual, features=usual.features | {LAST_ARRIVING, MATRIX_UNITS, MATRIX_BYTES, MATRIX_ATTENTION})
    assert no_matrix_units(gpu.limits) == no_byte_units(gpu.limits) == ""
    try:
        yield Trial(gpu, np.random.default_rng())
    finally:
        gpu.limits = usual


def test_the_library_is_the_packages() -> None:
    assert ("dawn", choice.dawn_package().name) == (KIND, NAME)


def test_the_driver_tells_its_configurations() -> None:
    limits = Gpu.open(Config()).limits
    assert str(limits.fragment) == str(limits.byte_fragment) == "8x8x8"
    told = dict(zip(limits.configurations, limits.configuration_subgroups, strict=True))
    assert told["float16 float32 8x8x8"] == told["int8 int32 8x8x8"] == (8, 8)
    assert "subgroup-size-control" in limits.features


def test_products_of_batches(trial: Trial) -> None:
    products.test_batches_that_broadcast(trial)  # type: ignore[arg-type]


def test_products_with_edges(trial: Trial) -> None:
    products.test_gemm_of_any_size_with_transposed_operands(trial, (33, 35, 37), (1, 1))  # type: ignore[arg-type]


def test_float16_models(trial: Trial) -> None:
    products.test_float16_models(trial, (40, 72, 64), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["normal", "positive", "large", "small", "mixed"])
@pytest.mark.parametrize("precision", ["f16acc", "tf32"])
def test_errors_by_precision(trial: Trial, kind: str, precision: str) -> None:
    if precision == "f16acc" and kind in ("large", "small", "mixed"):
        kind = "normal"  # float16 does not hold these, as docs/precision.md says
    a, b = products.drawn(kind, 70, 100, True), products.drawn(kind, 100, 68, False)
    with in_tile(QUICK):
        products.assert_within(products.product(trial, a, b, precision), a, b)  # type: ignore[arg-type]
    assert "matrix_product.wgsl" in trial.shaders


def test_a_size_of_subgroups_that_is_asked_for(trial: Trial) -> None:
    """As on an adapter that has several."""
    trial.gpu.limits = replace(trial.gpu.limits, subgroup_size=0)
    a, b = products.drawn("normal", 40, 64, True), products.drawn("normal", 64, 36, False)
    with in_tile(QUICK):
        products.assert_within(products.product(trial, a, b, "f16acc"), a, b)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["line", "space, few channels", "space of planes", "space, groups"])
@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_windows_over_lines_and_spaces(trial: Trial, name: str, kind: str) -> None:
    windows.check_half(trial, name, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["transposed, uneven", "transposed to planes", "transposed line", "transposed space", "21 filters"]
)
@pytest.mark.parametrize("precision", ["float16", "f16acc", "tf32"])
def test_sums_that_are_spread(trial: Trial, name: str, precision: str) -> None:
    windows.test_spread(trial, name, precision, True)  # type: ignore[arg-type]


@pytest.mark.usefixtures("in_parts")
def test_windows_with_k_in_parts_and_a_fused_sum(trial: Trial) -> None:
    windows.check(trial, "3x3", "normal", "tf32", residual=True)  # type: ignore[arg-type]
    assert trial.shaders >= {"part_scales.wgsl", "matrix_product.wgsl"}


def test_codes(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_units, "TILES", (QUICK,))
    with forced(f"decoded in {QUICK.name}"):
        got, want, allowed = packed.product(trial, "tf32", "codes", sizes=(37, 160, 40, 32))  # type: ignore[arg-type]
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("split", [1, 2])
def test_few_vectors(trial: Trial, split: int) -> None:
    few.check(trial, 7, 416, 72, 32, True, True, split)  # type: ignore[arg-type]


def test_attention(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two subgroups share rows of queries, each with half of the keys, then of the values."""
    monkeypatch.setattr(attention_units, "MOST_CHUNK", 16)
    q, k, v = heads.heads_of("mixed", (1, 2, 37, 71, 16), 32)
    arrays = {"q": q, "k": k, "v": v}
    with forced(heads.QUICK.name):
        got = heads.run(trial, heads.graph_of("Attention", arrays, scale=0.2), arrays, "tf32")  # type: ignore[arg-type]
    want, allowed = heads.wanted(q, k, v, 0.2, "tf32")
    assert (np.abs(got - want) <= allowed).all()
    assert "attention_units.wgsl" in trial.shaders


@pytest.mark.parametrize(("form", "width", "values"), [(UnitForm(1, 16), 20, 36), (UnitForm(1, 32, 4), 32, 144)])
def test_heads_that_zeros_fill(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, form: UnitForm, width: int, values: int
) -> None:
    """With two invocations of a query, and with four, which four subgroups share."""
    monkeypatch.setattr(attention_units, "FORMS", (form,))
    monkeypatch.setattr(attention_units, "MOST_CHUNK", 16)
    q, k, v = (a.astype(np.float16) for a in heads.heads_of("normal", (1, 2, 19, 37, width), values))
    arrays, seen = {"q": q, "k": k, "v": v}, np.tril(np.ones((19, 37), bool))
    graph = heads.graph_of("Attention", arrays, scale=0.2, is_causal=1)
    with forced(form.name):
        got = heads.run(trial, graph, arrays, "float32")  # type: ignore[arg-type]
    want, allowed = heads.wanted(q, k, v, 0.2, "float16", seen)
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("name", ["1x1", "3x3", "planes"])
def test_convolutions_of_bytes(trial: Trial, name: str) -> None:
    of_bytes.test_convolutions(trial, name, True)  # type: ignore[arg-type]


def test_sums_of_bytes(trial: Trial) -> None:
    of_bytes.test_sums(trial, (33, 20, 260))  # type: ignore[arg-type]


def test_probes_see_their_faults(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_gpu_ep.health.probes.matrix_units.TILES", (QUICK,))
    assert "8x8x8" in PROBES["matrix units"].check(trial)
    trial.planted = PROBES["matrix units"].fault
    with pytest.raises(WrongResultError):
        PROBES["matrix units"].check(trial)


PRODUCT = """<ir_version: 10, opset_import: ["": 18]> g (float16[64, 1024] x, float16[1024, 128] w) => (float16[64, 128] y) { y = MatMul (x, w) }"""
PROGRAM = f"""
import logging, sys, numpy as np, onnx, onnx.parser, ort_gpu_ep
logging.basicConfig(level=logging.INFO)
model = onnx.parser.parse_model('''{PRODUCT}''')
session = ort_gpu_ep.InferenceSession(model.SerializeToString(), provider_options={{"strict": "1", "placement": "gpu", "unit_plans": "wait"}})
rng = np.random.default_rng(0)
x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, 1024), (1024, 128)))
got = session.run(None, {{"x": x, "w": w}})[0].astype(np.float64)
want = x.astype(np.float64) @ w.astype(np.float64)
assert np.abs(got - want).max() < 0.1, np.abs(got - want).max()
print(session.explain())
"""


def explained(cache: Path, **variables: str) -> str:
    """PROGRAM's output, with nothing decided so far."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ORT_GPU_EP_")} | {
        "ORT_GPU_EP_CACHE_DIR": str(cache)
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_chosen_where_its_units_work(tmp_path: Path) -> None:
    text = explained(tmp_path)
    assert f"library: {choice.dawn_package().name}: the matrix units of" in text
    assert "on matrix units" in text


SPACE = """<ir_version: 10, opset_import: ["": 18]> g (float16[1, 32, 8, 16, 16] x, float16[64, 32, 3, 3, 3] w, float16[64, 64, 3, 3, 3] u)
    => (float16[1, 64, 8, 16, 16] y) {
    a = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w) b = Relu (a) c = Conv <pads = [1, 1, 1, 1, 1, 1]> (b, u) y = Add (c, b) }"""


def test_a_float16_network_is_as_exact_as_onnxruntimes() -> None:
    """Over three spatial dimensions, with every option that chooses kernels at its default; onnxruntime's CPU
    calculates float16 in float32 and rounds the result."""
    model, rng = onnx.parser.parse_model(SPACE), np.random.default_rng(3)
    drawn = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float16)
        for value in model.graph.input
    }
    for name in "wu":
        drawn[name] *= np.float16(0.04)
        model.graph.initializer.append(onnx.numpy_helper.from_array(drawn[name], name))
    del model.graph.input[1:]
    data = model.SerializeToString()
    session = InferenceSession(data, provider_options={"strict": "1", "placement": "gpu", "unit_plans": "wait"})
    (got,) = session.run(None, {"x": drawn["x"]})
    (theirs,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": drawn["x"]})
    inner = np.maximum(convolved(drawn["x"], drawn["w"]), 0)
    want = convolved(np.moveaxis(inner.astype(np.float16), -1, 1), drawn["u"]) + inner
    ours, other = (np.linalg.norm(np.moveaxis(y, 1, -1) - want) / np.linalg.norm(want) for y in (got, theirs))
    assert "on matrix units" in str(session.explain())
    assert ours < 1.1 * other + 1e-6


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """3 x 3 x 3, in float64; the result has its channels last."""
    return expected(x, w, None, None, {"pads": (1,) * 6})


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("abort@matrix units", "ends the process at 'matrix units' (signal SIGABRT)"),
        ("abort@enumerate", "with Dawn: looking for GPU adapters ends"),
        ("wrong@matrix units", "fails the probe 'matrix units'"),
    ],
)
def test_what_goes_wrong_with_it_leaves_wgpu_native(tmp_path: Path, fault: str, why: str) -> None:
    """The fault is in the process that tries it; without its tests the session's own process is well."""
    code = """
from ort_gpu_ep.config import resolve
from ort_gpu_ep.health.libraries import settle
print(settle(resolve({"placement": "gpu"})))
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ORT_GPU_EP_")}
    environment |= {"ORT_GPU_EP_CACHE_DIR": str(tmp_path), "ORT_GPU_EP_DRILL": fault}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wgpu-native: ")
    assert why in done.stdout


@pytest.mark.parametrize("name", ["Conv", "MatMul", "Softmax"])
def test_float32_models_agree_with_the_cpu(name: str) -> None:
    nodes = {
        "Conv": "y = Conv <pads = [1, 1, 1, 1]> (x, w)",
        "MatMul": "y = MatMul (x, w)",
        "Softmax": "z = MatMul (x, w) y = Softmax (z)",
    }
    shapes = {"Conv": ([2, 8, 9, 11], [12, 8, 3, 3])}.get(name, ([2, 3, 20, 30], [2, 3, 30, 12]))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18]> g (float{shapes[0]} x, float{shapes[1]} w) => (float[a, b, c, d] '
        f"y) {{ {nodes[name]} }}"
    )
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal(shape, np.float32) for n, shape in zip("xw", shapes, strict=True)}
    (got,) = InferenceSession(model.SerializeToString(), provider_options={"strict": "1", "placement": "gpu"}).run(
        None, feeds
    )
    (want,) = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
