"""Whether an installed package works: version, help of every command, a session on the GPU beside the CPU's results.

usage: python scripts/smoke.py      (exit code 1 and a message where something does not; needs the extras `cli` and `onnxruntime`)
"""

from __future__ import annotations

import sys

import numpy as np
import onnx.parser
from typer.testing import CliRunner

import ort_gpu_ep as ort
from ort_gpu_ep.cli import COMMANDS, app

MODEL = """<ir_version: 10, opset_import: ["": 20]>
smoke (float[N, 8] x, float[8, 4] w) => (float[N, 4] y) { h = MatMul(x, w) y = Softmax(h) }"""


def commands() -> None:
    """Raises AssertionError, where a command's help ends with an exit code."""
    for arguments in (["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, (
            f"ort-gpu-ep {' '.join(arguments)}: exit code {done.exit_code}\n{done.output}{done.exception!r}"
        )


def session() -> str:
    """Where the nodes of a small model ran. Raises AssertionError for results that are not the CPU's."""
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((3, 8), dtype="f"), "w": rng.standard_normal((8, 4), dtype="f")}
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    ours = ort.InferenceSession(model, provider_options={"placement": "gpu"})
    (got,) = ours.run(None, feeds)
    (wanted,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return f"{ours.explain().count('gpu')} nodes on the GPU"


if __name__ == "__main__":
    commands()
    print(
        f"ort-gpu-ep {ort.__version__}, onnxruntime {ort.get_version_string()}, Python {sys.version.split()[0]}: "
        f"{session()}"
    )
