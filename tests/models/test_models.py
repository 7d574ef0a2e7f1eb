"""Whole models through the drop-in session against ONNX Runtime's CPU provider, with placement asserted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import models
from models import pretrained
from models.inputs import has_variant, make_inputs, model_inputs
from ort_gpu_ep import InferenceSession

WHOLE = ("light_squeezenet", "light_resnet50", "light_inception_v1", "light_densenet121", "mtcnn_onet", "mtcnn_pnet")
"""Pretrained models of which every node has a kernel."""

WHOLE_BUILDERS = (
    "lenet5",
    "alexnet",
    "mobilenet_v2",
    "unet",
    "tcn",
    "har_lstm",
    "mlp_16",
    "mlp_16x3",
    "mlp_256",
    "mlp_784",
)

FLOAT32_EPSILON = 2.0**-23
"""Floor of a noise figure: the catalog has 0 for models whose two ORT runs happened to agree bit for bit."""

VARIANTS = [(e.name, v) for e in pretrained.entries() for v in range(1 + has_variant(e.inputs))]

LONG = ("alexnet", "light_densenet121", "light_inception_v1", "light_resnet50", "layout_picodet", "ppocr4_det")
"""Their kernels take longest to compile, or their weights to make: at night, as googlenet's.

Every day squeezenet, an unet and a detector are among the built networks."""


def options(**config: Any) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1  # dynamic-int8 models depend on the number of threads
    for key, value in config.items():
        settings.add_session_config_entry(key.replace("__", "."), value)
    return settings


def relative_l2(got: Any, want: Any) -> float:
    """Relative L2 distance of one output; infinity for another shape, type or non-float content."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    difference = np.linalg.norm(got.astype(np.float64) - want.astype(np.float64))
    return float(difference / (np.linalg.norm(want.astype(np.float64)) + 1e-30))


def run_cpu(model: Any, feeds: Any) -> Any:
    return onnxruntime.InferenceSession(model, options(), providers=["CPUExecutionProvider"]).run(None, feeds)


def float_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every float32 constant of a graph and of the bodies in it."""
    yield from (t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    for attribute in (a for n in graph.node for a in n.attribute):
        if attribute.HasField("t") and attribute.t.data_type == onnx.TensorProto.FLOAT:
            yield attribute.t
        if attribute.HasField("g"):
            yield from float_tensors(attribute.g)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for attribute in (a for n in graph.node for a in n.attribute if a.HasField("g")):
        yield from all_graphs(attribute.g)


def run_float64(path: str, feeds: Any) -> Any:
    """ONNX's reference implementation of the model in float64."""
    model = onnx.load(path)
    for tensor in float_tensors(model.graph):
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
        )
    for graph in all_graphs(model.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
        for attribute in (
            a for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.i == onnx.TensorProto.FLOAT
        ):
            attribute.i = onnx.TensorProto.DOUBLE
    wide = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}
    return [r.astype(np.float32) if r.dtype == np.float64 else r for r in ReferenceEvaluator(model).run(None, wide)]


def weight_noise(path: str, feeds: Any, want: Any) -> float:
    """What changing every float weight by a relative 1e-6 does, on the CPU: the noise figure of a model whose inputs
    are integers."""
    model = onnx.load(path)
    rng = np.random.default_rng(0)
    for tensor in float_tensors(model.graph):
        array = onnx.numpy_helper.to_array(tensor)
        changed = array * (1 + 1e-6 * rng.choice((-1.0, 1.0), array.shape))
        # a mask may be the largest float there is
        changed = np.clip(changed, np.finfo(np.float32).min, np.finfo(np.float32).max)
        tensor.CopyFrom(onnx.numpy_helper.from_array(changed.astype(np.float32), tensor.name))
    return max(relative_l2(g, w) for g, w in zip(run_cpu(model.SerializeToString(), feeds), want, strict=True))


def tolerance(entry: Any, feeds: Any, want: Any) -> float:
    """Ten times the model's own noise: the larger of the catalog's figures; measured where it has none for lack of
    float inputs."""
    figures = [
        entry.facts[k]["rel_l2"] for k in ("noise_ort_opt_vs_noopt", "sensitivity_input_1e-6") if k in entry.facts
    ]
    if "sensitivity_input_1e-6" not in entry.facts:
        figures.append(weight_noise(str(pretrained.path(entry.name)), feeds, want))
    return 10 * max(*figures, FLOAT32_EPSILON)


@pytest.mark.parametrize(
    ("name", "variant", "placement"),
    [
        pytest.param(
            name,
            variant,
            placement,
            id=f"{name}-{variant}-{placement}",
            marks=pytest.mark.nightly if placement == "gpu" and (variant or name in LONG) else [],
        )
        for placement in ("gpu", "auto")
        for name, variant in VARIANTS
    ],
)
def test_pretrained_model_gives_the_cpus_result(name: str, variant: int, placement: str) -> None:
    entry = pretrained.entry(name)
    path = str(pretrained.fetch(name))
    feeds = make_inputs(entry.inputs, seed=0, variant=variant)
    want = run_cpu(path, feeds)
    session = InferenceSession(path, options(), provider_options={"placement": placement})
    got = session.run(None, feeds)
    limit = tolerance(entry, feeds, want)
    if max(relative_l2(g, w) for g, w in zip(got, want, strict=True)) > limit:
        # which of the two is off? (silero_vad_ifless: ORT CPU by 7.5e-6, this package by 5e-7)
        want = run_float64(path, feeds)
    assert max(relative_l2(g, w) for g, w in zip(got, want, strict=True)) <= limit
    explained = session.explain()
    assert not explained.events
    if placement == "gpu":
        assert explained.count("gpu") > 0
        assert session.stats()["fallbacks"] == 0
    elif "software" in explained.adapter:
        assert explained.count("gpu") == 0


@pytest.mark.parametrize("name", WHOLE)
def test_pretrained_model_runs_wholly_on_the_gpu(name: str) -> None:
    session = InferenceSession(
        str(pretrained.fetch(name)),
        options(session__disable_cpu_ep_fallback="1"),
        provider_options={"placement": "gpu", "strict": "1"},
    )
    assert session.explain().count("cpu") == 0
    assert len(session.explain().reports[-1].partitions) == 1


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in LONG else []) for name in WHOLE_BUILDERS]
)
def test_built_model_runs_wholly_on_the_gpu(name: str) -> None:
    model = models.build(name)
    feeds = make_inputs(model_inputs(model), seed=3)
    data = model.SerializeToString()
    session = InferenceSession(
        data, options(session__disable_cpu_ep_fallback="1"), provider_options={"placement": "gpu", "strict": "1"}
    )
    for got, want in zip(session.run(None, feeds), run_cpu(data, feeds), strict=True):
        assert relative_l2(got, want) < 5e-6
    assert session.explain().count("cpu") == 0


@pytest.mark.parametrize(
    "name",
    [
        "squeezenet1_0",
        pytest.param("googlenet", marks=pytest.mark.nightly),
        "mobilenet_v1",
        "shufflenet",
        "encoder",
        "detector",
    ],
)
def test_built_model_gives_the_cpus_result(name: str) -> None:
    model = models.build(name)
    feeds = make_inputs(model_inputs(model), seed=4)
    data = model.SerializeToString()
    session = InferenceSession(data, options(), provider_options={"placement": "gpu"})
    for got, want in zip(session.run(None, feeds), run_cpu(data, feeds), strict=True):
        assert relative_l2(got, want) < 1e-5
    assert session.stats()["fallbacks"] == 0


def test_squeezenet_activations_share_memory() -> None:
    session = InferenceSession(
        str(pretrained.fetch("light_squeezenet")), options(), provider_options={"placement": "gpu"}
    )
    (memory,) = session.explain().memory
    assert memory.activation_nbytes <= 0.35 * memory.unshared_nbytes
