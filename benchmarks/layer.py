"""The Vulkan layer scripts/vulkan_layer.c, and pipelines of kernels' texts behind it: no run of any kernel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "scripts" / "vulkan_layer.c"
NAME = "VK_LAYER_ORT_GPU_EP_between"
MANIFEST = """{"file_format_version": "1.1.2", "layer": {"name": "%s", "type": "GLOBAL", "library_path": "./libvulkan_layer.so",
"api_version": "1.3.0", "implementation_version": "1", "description": "keeps SPIR-V, or what a driver tells of pipelines"}}"""


def build(folder: Path, target: str = "") -> dict[str, str]:
    """Builds the layer in a folder, by $CC or cc; for another machine (`aarch64-linux-gnu`, say) by the package
    ziglang. Returns the variables of a process that uses it. Raises RuntimeError.
    """
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target] if target else [os.environ.get("CC", "cc")]
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"{SOURCE.name} needs a C compiler, and there is no {compiler[0]}: install one (Debian: gcc), or "
            f"name it by CC"
        )
    folder.mkdir(exist_ok=True)
    subprocess.run(
        [
            *compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Wextra",
            "-fvisibility=hidden",
            str(SOURCE),
            "-o",
            str(folder / "libvulkan_layer.so"),
        ],
        check=True,
    )
    (folder / "layer.json").write_text(MANIFEST % NAME, "utf-8")
    return {"VK_INSTANCE_LAYERS": NAME, "VK_LAYER_PATH": str(folder)}


def make_pipeline(device: Any, text: str, trusted: bool) -> None:
    """As a session makes it of a composed text, with naga's checks of bounds and loops or without. Raises GPUError."""
    from ort_gpu_ep.webgpu import native

    bound = sorted(
        (int(place), kind) for place, kind in re.findall(r"@group\(0\) @binding\((\d+)\) var<([^>]*)>", text)
    )
    storage = ["write" in kind for _, kind in bound if kind != "uniform"]
    layout = device.create_pipeline_layout(device.create_bind_group_layout(storage, bound[-1][1] == "uniform"))
    module = native.trusted_module(device, "shader", text) if trusted else device.create_shader_module("shader", text)
    device.create_compute_pipeline("shader", layout, module)
