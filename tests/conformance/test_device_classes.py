"""ONNX's node cases on classes of GPUs, less than this adapter is: each passes or is declined with a reason; none is
planned and fails.

wgpu-native itself holds the device to the class's limits and features. One case of each set of ops and types: half of
those on the least that WebGPU promises, on each other class the share that the next one does not take. Every night the
least runs all cases, and the other classes run one of each set (all: `ort-gpu-ep conformance --device NAME`).
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ort_gpu_ep.device.classes import classes, named
from ort_gpu_ep.device.info import FEATURES
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.health.conformance import cases
from tests.conformance.test_conformance import is_refused, recorded, unlike

ROOT = Path(__file__).resolve().parents[2]
DAILY = ("adreno-6xx", "mali-g7x", "intel-uhd", "apple-m1", "amd-rdna")
OTHERS = [name for name in classes() if name != "minimum"]


def outcomes(device: str, select: str) -> list[dict[str, str]]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ort_gpu_ep.cli",
            "conformance",
            "--device",
            device,
            "--json",
            "--select",
            select,
            "-o",
            "health=off",
        ],
        capture_output=True,
        text=True,
        timeout=590,
    )
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)["outcomes"]
    return found


GIVEN = """
import json, pickle, sys
from ort_gpu_ep.device import adapter, classes
adapter.hold_to(classes.named(sys.argv[1]))
from ort_gpu_ep.health.conformance import run
from ort_gpu_ep.session.session import InferenceSession
print(json.dumps([o.as_dict() for o in run(pickle.load(sys.stdin.buffer), InferenceSession, {"health": "off"})]))
"""


def outcomes_given(device: str, selected: list[Any]) -> list[dict[str, str]]:
    """As `outcomes`, without the 5 s of CPU that ONNX takes to make all of its cases in another process."""
    told = pickle.dumps(
        [SimpleNamespace(name=c.name, model=c.model, data_sets=c.data_sets, rtol=c.rtol, atol=c.atol) for c in selected]
    )
    done = subprocess.run([sys.executable, "-c", GIVEN, device], input=told, capture_output=True, timeout=590)
    assert done.returncode == 0, done.stderr.decode()
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def check(found: list[dict[str, str]]) -> None:
    """What passes with all features passes, or is declined with a reason; onnxruntime refuses what its CPU has no
    kernel for either."""
    assert [o for o in found if o["status"] == "FAIL" and recorded().get(o["name"]) != "FAIL"] == []
    lost = [o for o in found if recorded().get(o["name"], "").startswith("PASS") and o["status"] != "PASS"]
    declined = [
        o
        for o in lost
        if (o["status"] == "UNSUPPORTED" and o["code"] and o["reason"])
        or any(w in o["reason"] for w in (" declined ", "find kernel"))
    ]
    assert [o for o in lost if o not in declined and not is_refused(o["name"], o["status"])] == []


@pytest.mark.nightly
def test_all_cases_on_the_least_that_webgpu_promises() -> None:
    found = outcomes("minimum", "")
    check(found)
    assert sum(o["status"] == "PASS" for o in found) >= 1300


@pytest.mark.parametrize(
    ("device", "share"),
    [
        ("minimum", slice(None, None, 2)),
        *((name, slice(k, None, len(DAILY))) for k, name in enumerate(DAILY)),
        *(pytest.param(name, slice(None), marks=pytest.mark.nightly) for name in OTHERS),
    ],
)
def test_some_cases_on_a_class_of_gpus(device: str, share: slice) -> None:
    selected = unlike(cases())[share]
    found = outcomes_given(device, selected)
    check(found)
    assert len(found) == len(selected) > 90
    # with 8 buffers, or without 8-byte integers or float16
    least = 0.84 if device == "minimum" else 0.9 if device in DAILY else 0.8
    assert sum(o["status"] == "PASS" for o in found) >= least * len(found)


def test_the_data_of_each_class() -> None:
    for name, found in classes().items():
        assert found.name == name
        assert found.source
        assert found.what
        assert found.features <= set(FEATURES)
        least, most = found.subgroups
        assert (least > 0) == ("subgroup" in found.features)
        assert least <= most <= 128
        for limit, value in classes()["minimum"].limits.items():  # no adapter offers less
            own = found.limits.get(limit, value)
            assert own <= value if limit.startswith("min") else own >= value, (name, limit)
    with pytest.raises(ConfigError, match="there are minimum, adreno-6xx"):
        named("voodoo")


def test_the_page_names_each_class_in_the_order_of_their_file() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text("utf-8").partition("## Classes of GPUs")[2].partition("\n## ")[0]
    measured = re.findall(r"^\| ([a-z0-9-]+)[^|]*\| [\d,]+ \|", text, re.M)
    nightly = re.split(r", | and ", re.search(r"\(([^()]*),\s+which are not in this table", text)[1].replace("\n", " "))  # type: ignore[index]
    assert measured == ["minimum", *DAILY]
    assert [name for name in classes() if name not in measured] == nightly


HELD = """
import json, sys
from ort_gpu_ep.device import adapter, classes
from ort_gpu_ep.webgpu import objects
from ort_gpu_ep.webgpu.library import GPUError
adapter.hold_to(classes.named("minimum"))
info, raw = adapter.choose("")
device, limits = adapter.request_device(info, raw), adapter.limits_of(raw)
told = {"name": info.name, "type": info.type, "features": sorted(limits.features), "buffers": limits.max_buffers_per_stage,
        "binding": limits.max_binding_nbytes, "workgroup": limits.max_workgroup_nbytes, "invocations": limits.max_invocations, "refused": []}
def attempt(what, action):
    try:
        action()
    except GPUError as error:
        told["refused"].append(what)
def pipeline(body, head=""):
    layout = device.create_bind_group_layout([True])
    code = head + "@group(0) @binding(0) var<storage, read_write> y: array<f32>;\\n" + body
    device.create_compute_pipeline("p", device.create_pipeline_layout(layout), device.create_shader_module("m", code))
def lanes(n):
    pipeline(f"@compute @workgroup_size({n}) fn main() {{ y[0] = 1.0; }}")
def bound(nbytes):
    buffer = device.create_buffer("b", nbytes, objects.STORAGE)
    device.create_bind_group("g", device.create_bind_group_layout([True]), [(buffer.handle, 0, nbytes)])
attempt("8 buffers", lambda: device.create_pipeline_layout(device.create_bind_group_layout([True] * 8)))
attempt("9 buffers", lambda: device.create_pipeline_layout(device.create_bind_group_layout([True] * 9)))
attempt("256 invocations", lambda: lanes(256))
attempt("257 invocations", lambda: lanes(257))
attempt("128 MiB", lambda: bound(128 << 20))
attempt("more than 128 MiB", lambda: bound((128 << 20) + 4))
attempt("int64", lambda: pipeline("@compute @workgroup_size(1) fn main() { y[0] = f32(i64(y[0])); }"))
attempt("f16", lambda: pipeline("@compute @workgroup_size(1) fn main() { y[0] = f32(f16(y[0])); }", "enable f16;\\n"))
attempt("subgroups", lambda: pipeline("@compute @workgroup_size(1) fn main() { y[0] = subgroupAdd(y[0]); }"))
attempt("timestamps", lambda: device.create_query_set(2))
print(json.dumps(told))
"""


def test_wgpu_itself_holds_a_device_to_its_class() -> None:
    """But for workgroup memory, which wgpu-native 29 does not look at: the claim and scripts/tint.sh do."""
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told.pop("name").endswith(" as minimum")
    assert told == {
        "type": "integrated",
        "features": [],
        "buffers": 8,
        "binding": 128 << 20,
        "workgroup": 16384,
        "invocations": 256,
        "refused": ["9 buffers", "257 invocations", "more than 128 MiB", "int64", "f16", "subgroups", "timestamps"],
    }


def test_a_process_that_has_looked_at_its_adapters_is_told() -> None:
    code = (
        "from ort_gpu_ep.device import adapter, classes\nadapter.adapters()\n"
        "try:\n    adapter.hold_to(classes.named('minimum'))\nexcept Exception as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert "has looked at its adapters already" in done.stdout, done.stderr


NETWORKS = """
import sys, tempfile
import numpy as np, onnxruntime
from ort_gpu_ep.device import adapter, classes
adapter.hold_to(classes.named(sys.argv[1]))
import models, ort_gpu_ep
import onnx
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep.compression.model import compress
from ort_gpu_ep.training import Adam, Trainer
from tests.training import references
gpu = {"placement": "gpu", "strict": "1", "health": "off", "hang_timeout_ms": "500000"}     # on a busy machine
def check(what, model, exact=1e-3):
    quiet = onnxruntime.SessionOptions(); quiet.log_severity_level = 3
    ours = ort_gpu_ep.InferenceSession(model, quiet, provider_options=gpu)
    theirs = onnxruntime.InferenceSession(model, quiet, providers=["CPUExecutionProvider"])
    feeds = make_inputs(model_inputs(onnx.load_model_from_string(model) if isinstance(model, bytes) else onnx.load(model)))
    for got, want in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=exact, atol=exact * max(np.abs(want).max(), 1e-6), err_msg=what)
    left = {n.op for r in ours.explain().reports for n in r.nodes if n.device == "cpu"}
    assert ours.explain().count("gpu") and not left, (what, left)
for name in sys.argv[2:]:
    check(name, models.build(name).SerializeToString())
with tempfile.TemporaryDirectory() as folder:
    onnx.save(models.build("mlp_784"), folder + "/plain.onnx")
    for method in ("int8", "int4", "codebook4", "prune90"):
        compress(folder + "/plain.onnx", f"{folder}/{method}.onnx", method)
        check(method, f"{folder}/{method}.onnx")
x, y = np.random.default_rng(1).normal(size=(32, 6)).astype("f"), np.arange(32) % 3
losses = []
for side in ({"placement": "cpu"}, gpu):
    trainer = Trainer(references.mlp(), loss="cross_entropy", optimizer=Adam(0.02), options=side)
    losses.append([float(trainer.step(x, y)) for _ in range(5)])
np.testing.assert_allclose(*losses, rtol=1e-4)
print("agreed")
"""


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("minimum", "lenet5 har_lstm encoder"),
        pytest.param("minimum", "shufflenet tcn mlp_784", marks=pytest.mark.nightly),
        pytest.param("mali-g7x", "lenet5 shufflenet har_lstm encoder tcn mlp_784", marks=pytest.mark.nightly),
    ],
)
def test_networks_compressed_products_and_training(device: str, names: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NETWORKS, device, *names.split()], capture_output=True, text=True, timeout=550
    )
    assert done.stdout.strip().endswith("agreed"), done.stdout + done.stderr
