"""What is used of onnxruntime beyond its documents is there in this version, and stands in private.py alone."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import ort_gpu_ep
from ort_gpu_ep import private
from tests.unit.graphs import model_of

PACKAGE = Path(ort_gpu_ep.__file__).parent
NOT_BEHIND = {
    "_sess_options_initial",
    "_model_path",
    "_model_bytes",
    "_enable_fallback",
    "_fallback_providers",
    "_read_config_from_model",
    "_from_model_package",
    "_is_webgpu_session",
    "_is_webgpu_graph_capture_enabled",
    "_bound_inputs",
    "_bound_outputs",
}
"""What an InferenceSession keeps beside: of the model and of how it was made."""


@pytest.fixture
def theirs() -> Any:
    model = model_of("(float[4] x) => (float[4] y) { y = Neg(x) }").SerializeToString()
    return private.OrtSession(model, providers=["CPUExecutionProvider"])


def test_nothing_is_missing_here(theirs: Any) -> None:
    assert private.missing(theirs) == [], f"of onnxruntime {onnxruntime.__version__}"


def test_what_is_missing_is_named(theirs: Any) -> None:
    del theirs._overridable_initializers, theirs._model_meta
    assert private.missing(theirs) == ["InferenceSession._model_meta", "InferenceSession._overridable_initializers"]


def test_whatever_a_session_knows_goes_with_it(theirs: Any) -> None:
    """A version that keeps more of the C++ session is told here: placement=auto puts another one behind the same
    object."""
    assert set(vars(theirs)) - private.BEHIND - private.NEWER - NOT_BEHIND == set(), (
        f"of onnxruntime {onnxruntime.__version__}"
    )
    assert private.state_of(theirs).keys() - private.NEWER == private.BEHIND


def test_nobody_else_reaches_inside() -> None:
    names = private.BEHIND | private.NEWER | private.ASKED | {"_iobinding"}
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            inside = isinstance(node, ast.Attribute) and node.attr in names
            imports = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onnxruntime.capi")
            if (inside or imports) and path.name != "private.py":
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert found == []
