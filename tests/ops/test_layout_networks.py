"""Small networks as layouts are chosen for them, against ONNX Runtime's CPU: fixed sizes, open ones, and a plan used
for other sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.ops import conv
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.partitioner.layouts import is_conversion
from ort_gpu_ep.runtime.program import Program
from tests.direct import run_direct, run_program
from tests.ops.single_node import Array, assert_agree, on_cpu
from tests.unit.graphs import model_of

CONV3 = "kernel_shape=[3,3], pads=[1,1,1,1]"

NETS: dict[str, tuple[str, dict[str, tuple[int, ...]], int]] = {
    "residual": (
        f"""(float[N, 3, H, W] x) => (y) {{
        a = Conv<{CONV3}, strides=[2,2]>(x, w3) b = Relu(a) c = Conv<{CONV3}>(b, k1) d = Relu(c) e = Conv<{CONV3}>(d, k2) f = Add(e, b)
        g = Relu(f) h = MaxPool<kernel_shape=[2,2], strides=[2,2]>(g) p = GlobalAveragePool(h) q = Flatten(p) y = Gemm(q, fc) }}""",
        {"w3": (16, 3, 3, 3), "k1": (16, 16, 3, 3), "k2": (16, 16, 3, 3), "fc": (16, 5)},
        1,
    ),
    "squeeze and excite": (
        f"""(float[N, 16, H, W] x) => (y) {{
        a = Conv<{CONV3}, group=16>(x, dw) b = HardSwish(a) s = GlobalAveragePool(b) t = Conv(s, k1) u = Relu(t) v = Conv(u, k2)
        r = HardSigmoid(v) m = Mul(b, r) n = Conv(m, k3) y = Add(n, x) }}""",
        {"dw": (16, 1, 3, 3), "k1": (8, 16, 1, 1), "k2": (16, 8, 1, 1), "k3": (16, 16, 1, 1)},
        2,
    ),
    "inception": (
        f"""(float[N, 16, H, W] x) => (y) {{
        a = Conv(x, k1) b = Conv(x, k2) c = Conv<{CONV3}>(b, k3) d = AveragePool<{CONV3}>(x) e = Conv(d, k4)
        f = MaxPool<{CONV3}>(x) g = Concat<axis=1>(a, c, e, f) h = Mul(g, scale) i = Relu(h) y = Softmax<axis=1>(i) }}""",
        {"k1": (8, 16, 1, 1), "k2": (12, 16, 1, 1), "k3": (20, 12, 3, 3), "k4": (4, 16, 1, 1), "scale": (48, 1, 1)},
        2,
    ),
    "u-net": (
        f"""(float[N, 4, H, W] x) => (y) {{
        a = Conv<{CONV3}>(x, k1) b = Relu(a) c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b) d = Conv<{CONV3}>(c, k2) e = Relu(d)
        f = Resize<mode="linear">(e, , up) g = Concat<axis=1>(f, b) h = Conv<{CONV3}>(g, k3) y = Sigmoid(h) }}""",
        {"k1": (8, 4, 3, 3), "k2": (16, 8, 3, 3), "k3": (4, 24, 3, 3)},
        1,
    ),
    "u-net, transposed": (
        f"""(float[N, 4, H, W] x) => (y) {{
        a = Conv<{CONV3}>(x, k1) b = Relu(a) c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b) d = Conv<{CONV3}>(c, k2) e = Relu(d)
        f = ConvTranspose<strides=[2,2]>(e, up4) g = Concat<axis=1>(b, f) h = Conv<{CONV3}>(g, k3) y = Conv(h, k4) }}""",
        {"k1": (8, 4, 3, 3), "k2": (16, 8, 3, 3), "up4": (16, 8, 2, 2), "k3": (12, 16, 3, 3), "k4": (3, 12, 1, 1)},
        0,
    ),
    "generator": (
        """(float[N, 8, H, W] x) => (y) {
        a = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, k1) b = Relu(a) c = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(b, k2)
        d = Relu(c) e = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]>(d, k3) y = Tanh(e) }""",
        {"k1": (8, 12, 4, 4), "k2": (12, 8, 4, 4), "k3": (8, 3, 3, 3)},
        1,
    ),
    "groups": (
        f"""(float[N, 8, H, W] x) => (y) {{
        a = Conv(x, k1) b = Relu(a) c = Conv<{CONV3}, group=4>(b, k2) d = Relu(c) e = Conv(d, k3) y = Add(e, x) }}""",
        {"k1": (16, 8, 1, 1), "k2": (16, 4, 3, 3), "k3": (8, 16, 1, 1)},
        2,
    ),
    "shuffled": (
        f"""(float[N, 24, 6, 4] x) => (y) {{
        a = Conv<group=3>(x, k1) b = Relu(a) c = Reshape(b, split) d = Transpose<perm=[0,2,1,3,4]>(c) e = Reshape(d, joined)
        f = Conv<{CONV3}, group=12>(e, dw) g = Conv<group=3>(f, k2) h = Add(x, g) y = Relu(h) }}""",
        {"k1": (12, 8, 1, 1), "dw": (12, 1, 3, 3), "k2": (24, 4, 1, 1)},
        2,
    ),
    "from tensorflow": (
        f"""(float[N, H, W, 8] x) => (y) {{
        a = Transpose<perm=[0,3,1,2]>(x) b = Conv<{CONV3}>(a, k1) c = Relu(b) d = Transpose<perm=[0,2,3,1]>(c) e = Add(d, bias)
        f = Transpose<perm=[0,3,1,2]>(e) g = Conv<{CONV3}>(f, k2) y = Transpose<perm=[0,2,3,1]>(g) }}""",
        {"k1": (16, 8, 3, 3), "k2": (8, 16, 3, 3), "bias": (16,)},
        0,
    ),
}
"""Text, weights, and how many conversions are placed, free ones among them."""

SIZES: tuple[tuple[int, int, int], ...] = ((2, 12, 16), (4, 20, 8), (3, 8, 24))  # N, H, W


def made(name: str) -> onnx.ModelProto:
    text, weights, _ = NETS[name]
    rng = np.random.default_rng(3)
    held = {n: (rng.standard_normal(s) / np.sqrt(max(np.prod(s[1:]), 1))).astype("f") for n, s in weights.items()}
    shapes = {"up": np.array([1, 1, 2, 2], "f"), "split": np.array([0, 3, 4, 6, 4]), "joined": np.array([0, 12, 6, 4])}
    return model_of(text, {**held, **shapes})


def fed(name: str, size: tuple[int, int, int], seed: int = 0) -> dict[str, Array]:
    n, h, w = size
    names = {"N": n, "H": h, "W": w}
    shape = [names.get(d.strip(), d.strip()) for d in NETS[name][0].split("[")[1].split("]")[0].split(",")]
    return {"x": np.random.default_rng([seed, n, h, w]).standard_normal([int(d) for d in shape]).astype("f")}


@pytest.fixture(autouse=True)
def convolutions_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with large images on a large GPU: for these small ones the choice could be another."""
    real = conv.channels_last_gain_ns
    monkeypatch.setattr(conv, "channels_last_gain_ns", lambda node: -np.inf if np.isinf(real(node)) else 1e6)


@pytest.mark.parametrize("name", NETS)
def test_conversions_are_where_they_must_be(name: str) -> None:
    model, feeds = made(name), fed(name, SIZES[0])
    graph = rewrite(
        from_onnx(model),
        {"x": TensorType(FLOAT32, feeds["x"].shape)},
        Limits(max_invocations=1024, max_workgroup_nbytes=32768),
    )
    assert [n.channels_last for n in graph.nodes if n.op == "Conv"].count(False) == 0
    assert sum(map(is_conversion, graph.nodes)) == NETS[name][2]


def test_explain_counts_them() -> None:
    """The end of a squeeze and excite block is an output: one conversion there, one where the image comes in."""
    session = InferenceSession(made("squeeze and excite").SerializeToString(), provider_options={"placement": "gpu"})
    session.run(None, fed("squeeze and excite", SIZES[0]))
    (memory,) = session.explain().memory
    assert memory.channels_last >= 6
    assert memory.conversions == 2
    assert f"{memory.channels_last} nodes in channels-last layout with 2 conversions" in str(session.explain())


@pytest.mark.parametrize("name", NETS)
def test_fixed_sizes(name: str) -> None:
    model = made(name)
    for value, size in zip(("N", "H", "W"), SIZES[0], strict=True):
        for dim in model.graph.input[0].type.tensor_type.shape.dim:
            if dim.dim_param == value:
                dim.dim_value = size
    feeds = fed(name, SIZES[0])
    assert_agree(run_direct(model, feeds, rewrite)[0], on_cpu(model, feeds)[0], 3e-6)


@pytest.mark.parametrize("name", NETS)
def test_one_plan_for_all_sizes(name: str) -> None:
    model = made(name)
    program = Program(from_onnx(model), Config(), Gpu.open(Config()), rewrite)
    try:
        for seed, size in enumerate(SIZES):
            feeds = fed(name, size, seed)
            assert_agree(run_program(program, feeds)[0], on_cpu(model, feeds)[0], 3e-6)
        assert program.planned == 1
    finally:
        program.close()
