"""DirectX's compiler: found beside wgpu-native or on PATH, given to it, and what is said where it is nowhere. No
Windows is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ort_gpu_ep.webgpu import dxc, objects, wgpu_native
from ort_gpu_ep.webgpu.library import ffi, lib, text_of


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


def compiler(folder: Path) -> str:
    folder.mkdir()
    (folder / dxc.FILE).write_bytes(b"MZ")
    return str(folder / dxc.FILE)


def test_it_is_found_on_path(windows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (tmp_path / "none", tmp_path / "there"))))
    assert dxc.path() == ""
    there = compiler(tmp_path / "there")
    assert dxc.path() == there
    assert dxc.lost("D3D12") == ""


def test_what_is_lost_without_it_is_said(windows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert all(word in dxc.lost("D3D12") for word in ("FXC", "float16", "64-bit integers", "subgroups", dxc.FILE))
    assert dxc.lost("Vulkan") == ""


def test_elsewhere_it_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    compiler(tmp_path / "there")
    monkeypatch.setenv("PATH", str(tmp_path / "there"))
    assert dxc.path() == ""


def test_wgpu_is_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = dict[str, Any]()

    class Created:
        @staticmethod
        def wgpuCreateInstance(descriptor: Any) -> str:
            extras = ffi.cast("WGPUInstanceExtras *", descriptor.nextInChain)
            seen.update(compiler=extras.dx12ShaderCompiler, path=text_of(extras.dxcPath))
            return "made"

    monkeypatch.setattr(objects, "_instances", [])
    monkeypatch.setattr(wgpu_native, "checked", Created)
    for path, kind in ((r"C:\tools\dxcompiler.dll", lib.WGPUDx12Compiler_Dxc), ("", lib.WGPUDx12Compiler_Undefined)):
        objects._instances.clear()
        monkeypatch.setattr(dxc, "path", lambda path=path: path)
        assert objects.instance() == "made"
        assert seen == {"compiler": kind, "path": path}
