"""What plugin providers' packages offer, and onnxruntime's own calls with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ort_gpu_ep

ROOT = Path(__file__).parents[2]

BY_THEIR_CALLS = """
import numpy as np, onnxruntime, ort_gpu_ep
from onnx import helper, TensorProto
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()

onnxruntime.register_execution_provider_library("theirs", ort_gpu_ep.get_library_path())
devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name in ort_gpu_ep.get_ep_names()]
assert len(devices) == 1, devices
settings = onnxruntime.SessionOptions()
settings.add_provider_for_devices(devices, {"placement": "gpu"})
session = onnxruntime.InferenceSession(model, settings)
assert session.get_providers()[0] == ort_gpu_ep.get_ep_name()
print(*session.run(None, {"x": np.array([-1, 2, -3, 4], "f")})[0])

ort_gpu_ep.register()       # it is: no second one
assert [d.ep_name for d in onnxruntime.get_ep_devices()].count(ort_gpu_ep.EP_NAME) == 1
ours = ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu"})
print(*ours.run(None, {"x": np.array([-1, 2, -3, 4], "f")})[0], ours.explain().count("gpu"))
del session, ours, settings, devices
onnxruntime.unregister_execution_provider_library("theirs")
ort_gpu_ep.unregister()
ort_gpu_ep.register()
print([d.ep_name for d in onnxruntime.get_ep_devices()].count(ort_gpu_ep.EP_NAME))
"""


def test_names() -> None:
    assert ort_gpu_ep.get_ep_names() == [ort_gpu_ep.get_ep_name()] == [ort_gpu_ep.EP_NAME]
    assert Path(ort_gpu_ep.get_library_path()).is_file()


def test_by_onnxruntimes_own_calls() -> None:
    done = subprocess.run([sys.executable, "-c", BY_THEIR_CALLS], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["0.0 2.0 0.0 4.0", "0.0 2.0 0.0 4.0 1", "1"]), done.stderr


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ort_gpu_ep", "exec", "--", "echo", "-n", "there"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "there")
