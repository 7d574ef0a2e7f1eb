"""onnxruntime-genai's own loop over our provider: the CPU's tokens, and with the name that it knows, caches on the
device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models.genai import save_folder
from tests.cli.test_examples import WITH_GENAI, check

PROGRAM = Path(__file__).with_name("genai_run.py")
STEPS = 30


def ran(folder: Path, provider: str, name: str, capture: int = 0, **sizes: Any) -> dict[str, Any]:
    """provider: as the model's settings call it; name: under which the library is registered. capture: whether graphs
    are to be captured."""
    options = {
        "placement": "gpu",
        "strict": "1",
        **({"enableGraphCapture": str(capture), "validationMode": "basic"} if provider == "WebGPU" else {}),
    }
    save_folder(folder, provider, options, **sizes)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), name], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "sizes", [{}, {"packed": False, "layers": 3, "heads": 4, "groups": 1, "seed": 3}], ids=["qkv", "q-k-v"]
)
def test_the_tokens_of_the_cpu(sizes: dict[str, Any], tmp_path: Path) -> None:
    wanted = ran(tmp_path, "", "", **sizes)
    assert len(wanted["tokens"][0]) == STEPS + 1
    ours, stand_in = (
        ran(tmp_path, "WgpuExecutionProvider", "ours", **sizes),
        ran(tmp_path, "WebGPU", "WebGpuExecutionProvider", **sizes),
    )
    replayed = ran(tmp_path, "WebGPU", "WebGpuExecutionProvider", 1, **sizes)
    assert ours["tokens"] == stand_in["tokens"] == replayed["tokens"] == wanted["tokens"]
    assert ours["talk"] == stand_in["talk"] == replayed["talk"] == wanted["talk"]
    assert (wanted["device"], ours["device"], stand_in["device"]) == ("CPU", "CPU", "WebGPU")
    for copies in stand_in["copies"]:
        assert (copies["host_to_device"], copies["device_to_host"], copies["device_to_device"]) == (2 * STEPS, STEPS, 0)
        assert copies["executed"] == STEPS
    for copies in replayed[
        "copies"
    ]:  # ids twice: onnxruntime-genai makes 64-bit numbers of them in a session of its own
        assert (copies["host_to_device"], copies["device_to_host"], copies["device_to_device"]) == (3 * STEPS, STEPS, 0)
        assert copies["executed"] <= 1


def test_an_example_runs(tmp_path: Path) -> None:
    check("chat", tmp_path, WITH_GENAI["chat"], "--say", "Hello")
