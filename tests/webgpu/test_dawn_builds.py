"""Dawn's library is loaded only where it is a build that is known: what is refused before, with which reason, and that it stays unloaded."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx.parser
import pytest

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.webgpu import dawn, dawn_builds
from ort_gpu_ep.webgpu.implementation import own
from ort_gpu_ep.webgpu.library import KIND, NAME, ffi, lib
from ort_gpu_ep.webgpu.wgpu_native import WgpuNative

MODEL = '<ir_version: 10, opset_import: ["": 18]> g (float[4] x) => (float[4] y) { y = Relu (x) }'
PROGRAM = f"""
import onnx, onnx.parser, ort_gpu_ep
model = onnx.parser.parse_model('{MODEL}')
ort_gpu_ep.InferenceSession(model.SerializeToString(), provider_options={{"strict": "1"}})
"""


def test_without_the_option_it_is_wgpu_native() -> None:
    assert (KIND, NAME, type(own)) == ("wgpu", "wgpu-native", WgpuNative)


def test_a_build_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, known = tmp_path / "any_name.so", tmp_path / "known.json"
    library.write_bytes(b"a build")
    digest = hashlib.sha256(b"a build").hexdigest()
    known.write_text(json.dumps({digest: {"name": "the build", "features": {"One": 7}, "structures": {"Two": 8}}}))
    monkeypatch.setattr(dawn_builds, "KNOWN", known)
    assert dawn_builds.find(str(library)) == dawn_builds.Build(str(library), "the build", {"One": 7}, {"Two": 8})
    library.write_bytes(b"a build of another day")
    with pytest.raises(ConfigError, match=r"no build of Dawn .*known: the build\. Use one of these, or webgpu=wgpu"):
        dawn_builds.find(str(library))


def test_every_known_build_has_a_name_and_the_features_that_are_asked_for() -> None:
    for digest, build in json.loads(dawn_builds.KNOWN.read_text("utf-8")).items():
        assert len(bytes.fromhex(digest)) == 32
        assert build["name"]
        assert {"ImplicitDeviceSynchronization", "ChromiumExperimentalSubgroupMatrix"} <= set(build["features"])
        assert set(build["structures"]) == {"AdapterPropertiesSubgroupMatrixConfigs"}


def test_a_path_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        dawn_builds.find(str(tmp_path / "missing.so"))


def test_without_path_and_package_it_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match="ort_gpu_ep_dawn"):
        dawn_builds.find("")


def test_a_session_is_refused_with_the_reason(tmp_path: Path) -> None:
    """What is no library at all ends as a sentence, and not as an error of the loader or a crash."""
    library = tmp_path / "libwebgpu_dawn.so"
    library.write_bytes(b"\x7fELF and nothing more")
    environment = {**os.environ, "ORT_GPU_EP_WEBGPU": "dawn", "ORT_GPU_EP_WEBGPU_LIBRARY": str(library)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{library} is no build of Dawn that this version of ort_gpu_ep knows" in done.stderr


def test_a_command_is_refused_with_the_reason(tmp_path: Path) -> None:
    environment = {**os.environ, "ORT_GPU_EP_WEBGPU": "dawn", "ORT_GPU_EP_WEBGPU_LIBRARY": str(tmp_path / "missing.so")}
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    for arguments, code in ((["doctor"], 2), (["run", "m.onnx"], 1)):
        done = subprocess.run([sys.executable, "-m", "ort_gpu_ep", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code
        assert " ".join(done.stderr.split()).startswith("ConfigError: option webgpu_library=")
        assert "Traceback" not in done.stderr


NUMBERS = (2, 1, 16, 8, 16), (6, 4, 16, 16, 32), (9, 1, 8, 8, 8)
"""Configurations as Dawn tells them, the last one of a type that this package does not know."""


@pytest.mark.parametrize("told", [True, False])
def test_configurations_of_matrix_units_are_read(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """And their list, which is Dawn's, is freed."""
    held, freed = (ctypes.c_uint32 * 15)(*(n for numbers in NUMBERS for n in numbers)), []

    def get_info(adapter: Any, info: Any) -> int:
        assert info.nextInChain.sType == 77
        words = ffi.cast("uint64_t *", info.nextInChain)
        words[2], words[3] = 3, ctypes.addressof(held)
        return int(lib.WGPUStatus_Success if told else lib.WGPUStatus_Error)

    monkeypatch.setattr(dawn, "lib", SimpleNamespace(
        WGPUStatus_Success=lib.WGPUStatus_Success, wgpuAdapterGetInfo=get_info, wgpuAdapterInfoFreeMembers=lambda info: None))
    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace(
        wgpuAdapterPropertiesSubgroupMatrixConfigsFreeMembers=lambda found: freed.append((path, found.count, found.first))))
    made = dawn.Dawn.__new__(dawn.Dawn)
    made._build = dawn_builds.Build("its path", "a build", {}, {"AdapterPropertiesSubgroupMatrixConfigs": 77})
    assert made.configurations(None) == (("float16 float32 16x8x16", "int8 int32 16x16x32", "9 float32 8x8x8") if told else ())
    assert freed == ([("its path", 3, ctypes.addressof(held))] if told else [])
