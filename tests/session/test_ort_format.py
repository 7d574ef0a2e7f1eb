"""Models in ORT format: onnxruntime copies nothing between devices there, so that a value on the GPU would end the
process in a CPU kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.session.session import InferenceSession
from tests.plugin.cases import info, make_model, node

RNG = np.random.default_rng(2)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flatten on the GPU, FusedGemm, which onnxruntime's CPU alone has, Gemm on the GPU."""
    nodes = [node("Flatten", "x", "f"), node("Gemm", "f v", "h"), node("Relu", "h", "r"), node("Gemm", "r w", "y")]
    held = {"v": RNG.normal(size=(64, 48)).astype("f"), "w": RNG.normal(size=(48, 32)).astype("f")}
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path_factory.mktemp("ort") / "model.ort")
    settings.add_session_config_entry("session.save_model_format", "ORT")
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    model = make_model(nodes, [info("x", ["n", 8, 8])], ["y"], held)
    onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return Path(settings.optimized_model_filepath)


@pytest.mark.parametrize(
    ("given", "options", "device"),
    [("path", {}, "cpu"), ("bytes", {"adapter": "0"}, "cpu"), ("path", {"isolation": "process"}, "gpu")],
)
def test_no_value_of_the_gpu_meets_a_kernel_of_the_cpu(given: str, options: Any, device: str, written: Path) -> None:
    feeds = {"x": RNG.normal(size=(3, 8, 8)).astype("f")}
    wanted = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    session = InferenceSession(
        written if given == "path" else written.read_bytes(), provider_options={"placement": "gpu", **options}
    )
    np.testing.assert_allclose(session.run(None, feeds)[0], wanted, rtol=1e-4, atol=1e-4)
    if device == "cpu":
        assert "ORT format" in session.missing_gpu
        assert "ORT format" in str(session.explain())
    else:
        assert "gpu" in {n.device for r in session.explain().reports for n in r.nodes}


def test_strict_says_so(written: Path) -> None:
    with pytest.raises(ConfigError, match=r"give the \.onnx file"):
        InferenceSession(written, provider_options={"placement": "gpu", "strict": 1})


def test_a_number_in_place_of_a_path_closes_no_file(tmp_path: Path) -> None:
    """Python's open() takes the number of an open file."""
    with (tmp_path / "file").open("w") as file:
        with pytest.raises(TypeError):
            InferenceSession(file.fileno())  # type: ignore[arg-type]
        file.write("still there")
        file.flush()
