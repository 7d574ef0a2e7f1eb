"""What plugin providers' packages offer, and onnxruntime's own calls with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ort_gpu_ep
from ort_gpu_ep.device.info import AdapterInfo, pick
from ort_gpu_ep.plugin.offers import known_adapters, metadata
from ort_gpu_ep.plugin.plain import NOT_COMPILED
from ort_gpu_ep.webgpu import loader_paths

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
    done = subprocess.run([sys.executable, "-c", BY_THEIR_CALLS], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["0.0 2.0 0.0 4.0", "0.0 2.0 0.0 4.0 1", "1"]), (
        done.stderr
    )


STANDS_IN = """
import numpy as np, onnx.parser, onnxruntime, ort_gpu_ep
from ort_gpu_ep.plugin.state import capture
model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }').SerializeToString()
NAME = "WebGpuExecutionProvider"
for name in (NAME, "ours"):
    onnxruntime.register_execution_provider_library(name, ort_gpu_ep.get_library_path())
names = [d.ep_name for d in onnxruntime.get_ep_devices()]
print(names.count(NAME), names.count(ort_gpu_ep.EP_NAME))
for provider, options in ((NAME, {"deviceId": "0", "enableGraphCapture": "0", "validationMode": "basic"}), (ort_gpu_ep.EP_NAME, {}), (NAME, {"plecement": "gpu"})):
    try:
        with capture() as states:
            providers = [(provider, {"placement": "gpu", "strict": "1", **options}), "CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(model, providers=providers)
        print(session.get_providers()[0], *session.run(None, {"x": np.array([-1, 2], "f")})[0], len(states[0].partitions))
        print([e.message for e in states[0].events if e.where == "options"])
    except Exception as error:
        print(error)
"""


def test_the_name_of_onnxruntimes_own_webgpu_provider() -> None:
    """For programs that know no other: its options are accepted, and said to have no effect; those that are nobody's
    are not."""
    done = subprocess.run([sys.executable, "-c", STANDS_IN], cwd=ROOT, capture_output=True, text=True, timeout=300)
    told = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert told[:2] == ["1 1", "WebGpuExecutionProvider 0.0 2.0 1"]
    assert "no effect here: deviceId, validationMode" in told[2]
    assert told[3:5] == ["WgpuExecutionProvider 0.0 2.0 1", "[]"]
    assert "did you mean 'placement'" in done.stdout


CHOOSES = """
import numpy as np, onnx.parser, onnxruntime, ort_gpu_ep
from ort_gpu_ep.plugin.state import capture
MODEL = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }').SerializeToString()
ort_gpu_ep.register()
devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == ort_gpu_ep.EP_NAME]
known = ort_gpu_ep.adapters()
assert [d.ep_metadata["name"] for d in devices] == [a.name for a in known] and len(known) == 2, known
assert all(d.ep_metadata["type"] == a.type and d.device.vendor_id == a.vendor_id for d, a in zip(devices, known))
for chosen in (devices[:1], devices[1:], devices):
    settings = onnxruntime.SessionOptions()
    settings.add_provider_for_devices(chosen, {})
    settings.add_session_config_entry("ep.wgpuexecutionprovider.placement", "gpu")
    with capture() as states:
        session = onnxruntime.InferenceSession(MODEL, settings)
    assert session.run(None, {"x": np.array([-1, 2], "f")})[0].tolist() == [0, 2]
    print(states[0].config.adapter or "any", states[0].backend.adapter.info.index)
with capture() as states:
    named = onnxruntime.InferenceSession(MODEL, providers=[("WgpuExecutionProvider", {"placement": "gpu"}), "CPUExecutionProvider"])
print(states[0].config.adapter or "any", states[0].backend.adapter.info.index)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="manifests of Vulkan drivers as Linux has them")
def test_devices_choose_among_adapters(tmp_path: Path) -> None:
    """A driver that is there twice makes two adapters, whose UUIDs are one."""
    driver = next(m for m in loader_paths.manifests(os.environ) if "lvp" in m.name)
    both = os.pathsep.join((str(driver), str(shutil.copy(driver, tmp_path / "again.json"))))
    env = {
        **os.environ,
        "VK_DRIVER_FILES": both,
        "VK_ICD_FILENAMES": both,
        "ORT_GPU_EP_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", CHOOSES], cwd=ROOT, capture_output=True, text=True, timeout=300, env=env
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["any 0", "1 1", "any 0", "any 0"]), done.stderr


def test_an_adapter_is_named_so_that_the_option_takes_it() -> None:
    one = AdapterInfo(
        0, "Card", "discrete", "Vulkan", "1.0", 0x10DE, 7, "0000:65:00.0", "6d657361-3232-2e33-2e36-000000000000"
    )
    other = AdapterInfo(1, "Card", "discrete", "Vulkan", "1.0", 0x9999, 7, "0000:66:00.0", one.uuid)
    described = metadata(one, [one, other])
    assert (described["adapter"], described["vendor"], described["type"]) == (one.pci, "NVIDIA", "discrete")
    assert metadata(other, [one, other])["vendor"] == "0x9999"
    for wanted in (one, other):
        assert pick([one, other], metadata(wanted, [one, other])["adapter"]) is wanted
    again = replace(other, backend="D3D12", pci=one.pci)
    assert metadata(again, [one, again])["adapter"] == "1"


def test_no_adapters_are_looked_for_where_drivers_are_not_to_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GPU_EP_HEALTH", "off")
    assert known_adapters() == ()


COMPILES = """
import onnx, onnx.parser, onnxruntime, ort_gpu_ep
onnxruntime.set_default_logger_severity(4)
onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }'), "m.onnx")
ort_gpu_ep.register()
device = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == ort_gpu_ep.EP_NAME)
for placement in ("gpu", "cpu"):
    settings = onnxruntime.SessionOptions()
    settings.add_provider_for_devices([device], {"placement": placement})
    try:
        onnxruntime.ModelCompiler(settings, "m.onnx").compile_to_file("compiled.onnx")
        print([n.op_type for n in onnx.load("compiled.onnx").graph.node])
    except Exception as error:
        print(str(error).splitlines()[0])
settings = onnxruntime.SessionOptions()
settings.add_session_config_entry("ep.context_enable", "1")
try:
    ort_gpu_ep.InferenceSession("m.onnx", settings, provider_options={"placement": "gpu", "strict": 1})
except ort_gpu_ep.ConfigError as error:
    print(error)
"""


def test_a_model_is_not_compiled_and_why(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    compiled, plain, session = done.stdout.splitlines()
    assert f"ConfigError: {NOT_COMPILED}" in compiled
    assert plain == "['Relu']"
    assert session == NOT_COMPILED


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ort_gpu_ep", "exec", "--", "echo", "-n", "there"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "there")
