"""An adapter that computes nothing, as a driver that the Vulkan layer leaves without work: the doctor sees it, and it is
used for nothing, by no way of running a model. The CPU answers and the reason is told; strict raises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import layer
from tests.unit.graphs import model_of

ROOT = Path(__file__).parents[2]
Python = Callable[..., subprocess.CompletedProcess[str]]

VIEWS = "(float[N, 3, 4] x) => (float[N, 12] y, float[N, 3, 4, 1] z) { y = Flatten(x) z = Unsqueeze(x, axis) }"
"""Nodes without a kernel: a condition on kernels alone lets them through."""

MIXED = "(float[N, 3, 4] x) => (float[N, 12] y) { f = Flatten(x) r = Relu(f) y = Flatten(r) }"
BODIES = """(float[N, 3, 4] x) => (y, s) {
    total = ReduceSum<keepdims = 0>(x)
    flag = Greater(total, zero)
    y = If (flag) <then_branch = g () => (t) { t = Flatten(x) }, else_branch = g () => (e) { n = Neg(x) e = Flatten(n) }>
    s = Loop (turns, on, x) <body = b (int64 i, bool c, float[N, 3, 4] v) => (bool d, float[N, 3, 4] w) { d = Identity(c) w = Identity(v) }> }"""

CODE = """
    import logging
    import numpy as np
    import onnxruntime
    import ort_gpu_ep as ort

    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    onnxruntime.set_default_logger_severity(4)
    WHY = "probe 'upload and readback': FAIL (WrongResultError: "
    rng = np.random.default_rng()
    MODELS = ["views.onnx", "mixed.onnx", "bodies.onnx"]
    try:        # leaves the verdict for the processes that this one starts
        ort.InferenceSession("mixed.onnx", provider_options={"placement": "gpu", "strict": 1})
    except ort.UnfitAdapterError as error:
        assert WHY in str(error)
    else:
        raise AssertionError("strict=1 opened a session")

    def same(got, want):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)

    def fresh(model):
        x = rng.standard_normal((int(rng.integers(1, 7)), 3, 4)).astype("f")
        return x, onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})

    def nothing_there(session, options):
        shown = session.explain()
        assert shown.count("gpu") == 0 and shown.count("cpu") > 0 and shown.adapter == "none", (options, str(shown))
        assert WHY in str(shown), str(shown)
        assert all(not report.partitions for report in shown.reports)
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path) -> None:
    constants = {"axis": np.array([3]), "zero": np.float32(0), "turns": np.int64(3), "on": np.bool_(True)}
    for name, text in (("views", VIEWS), ("mixed", MIXED), ("bodies", BODIES)):
        used = {k: np.asarray(v) for k, v in constants.items() if k in text}
        (tmp_path / f"{name}.onnx").write_bytes(model_of(text, used).SerializeToString())


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of processes whose driver computes nothing. They share what is known of the adapter."""
    folder = tmp_path_factory.mktemp("layer")
    return {**layer.build(folder), "NOTHING_LAYER": "1", "ORT_GPU_EP_CACHE_DIR": str(folder / "cache")}


def runs(python: Python, code: str, nothing: dict[str, str]) -> None:
    done = python(CODE + code + '\n    print("all well")\n', **nothing)
    assert (done.returncode, done.stdout) == (0, "all well\n"), done.stdout + done.stderr


def test_the_doctor(nothing: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ort_gpu_ep", "doctor", "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **nothing},
    )
    assert done.returncode == 2, done.stderr
    said = json.loads(done.stdout)
    assert said["health"] == "unusable"
    assert [probe["name"] for probe in said["probes"] if probe["status"] == "PASS"] == ["enumeration"]
    assert all(probe["status"] in ("FAIL", "UNSUPPORTED") for probe in said["probes"][1:])


def test_sessions(python: Python, nothing: dict[str, str]) -> None:
    runs(
        python,
        """
    for model in MODELS:
        for options in ({"placement": "gpu"}, {"placement": "gpu", "adapter": "0"}, {"placement": "gpu", "isolation": "process"},
                        {"placement": "gpu", "verify": 1}, {"placement": "auto", "adapter": "0"}, {"placement": "auto"}):
            session = ort.InferenceSession(model, provider_options=options)
            for _ in range(3):
                x, want = fresh(model)
                same(session.run(None, {"x": x}), want)
            assert session.wait_ready(300.0)
            if options != {"placement": "auto"}:        # which says that a software adapter is no use before it asks about this one
                nothing_there(session, options)
            assert session.stats()["fallbacks"] == 0
        for more in ({}, {"isolation": "process"}, {"placement": "auto", "adapter": "0"}):
            try:
                ort.InferenceSession(model, provider_options={"placement": "gpu", "strict": 1, **more})
            except ort.UnfitAdapterError as error:
                assert WHY in str(error)
            else:
                raise AssertionError(more)
    """,
        nothing,
    )


def test_values_on_the_device(python: Python, nothing: dict[str, str]) -> None:
    """Bindings, OrtValues, and plain onnxruntime's sessions with the provider."""
    runs(
        python,
        """
    ort.register()
    for model in MODELS:
        x, want = fresh(model)
        plain = onnxruntime.InferenceSession(model, providers=[(ort.EP_NAME, {"placement": "gpu"}), "CPUExecutionProvider"])
        same(plain.run(None, {"x": x}), want)
        for session in (plain, ort.InferenceSession(model, provider_options={"placement": "gpu"})):
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            for output in session.get_outputs():
                binding.bind_output(output.name)
            session.run_with_iobinding(binding)
            same(binding.copy_outputs_to_cpu(), want)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
            same([v.numpy() for v in session.run_with_ort_values(None, {"x": value})], want)
    """,
        nothing,
    )


def test_scoring_generation_and_training(python: Python, nothing: dict[str, str]) -> None:
    runs(
        python,
        """
    from ort_gpu_ep.generation import Generator
    from ort_gpu_ep.scoring import Predictor
    from ort_gpu_ep.training import SGD, Trainer
    from models.language import language_model
    from tests.session.test_language_models import prompt_of
    from tests.training import references

    try:
        Predictor("mixed.onnx", adapter="0")
    except ort.UnfitAdapterError as error:
        assert WHY in str(error)
    else:
        raise AssertionError("scoring uses it")
    tokens = {}
    for placement in ("gpu", "cpu"):
        made = Generator(language_model(layers=1), max_length=32, provider_options={"placement": placement})
        tokens[placement] = list(made.generate(prompt_of(1), max_new_tokens=5))
        assert made.session.explain().count("gpu") == 0
    assert tokens["gpu"] == tokens["cpu"]
    x, y = rng.normal(size=(8, 6)).astype("f"), rng.integers(0, 3, 8)
    losses = {}
    for options in ({"placement": "cpu"}, {"placement": "auto", "adapter": "0"}):
        t = Trainer(references.mlp(softmax=True), loss="cross_entropy", optimizer=SGD(0.1), options=options)
        losses[options["placement"]] = [float(t.step(x, y)) for _ in range(3)]
        assert t.stats()["placement"] == "cpu"
        assert options["placement"] == "cpu" or WHY in str(t.explain()), str(t.explain())
    same([losses["auto"]], [losses["cpu"]])
    try:        # a training step on the GPU is always strict
        Trainer(references.mlp(softmax=True), loss="cross_entropy", optimizer=SGD(0.1), options={"placement": "gpu"}).step(x, y)
    except ort.UnfitAdapterError as error:
        assert WHY in str(error)
    else:
        raise AssertionError("training uses it")
    """,
        nothing,
    )
