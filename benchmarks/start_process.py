"""One new process from its imports to its first result, and on until it has settled: what benchmarks/start.py starts
many of.

    python -m benchmarks.start_process SIDE MODEL INPUTS OPTIONS RUNS LIMIT_S PAUSE_MS

SIDE: `cpu` (onnxruntime's CPU provider), `webgpu` (its WebGPU provider), `ours`, or `gpu`, which is ours with
placement=gpu. INPUTS: JSON, name -> [numpy type, shape]; zeros are fed. OPTIONS: JSON, of our provider. RUNS: how many
follow the first one; with -1 as many as it takes until the session has settled, and five more, but none that begins
after LIMIT_S; with -2 none until it has settled, which leaves the cores to that, and it goes on until no helper process
is at work any more. PAUSE_MS: between two runs. Prints JSON: seconds to the session, to the first result, until it
settled (null: not within the limit) and until the GPU first answered, which candidates answered, milliseconds of the
runs that followed, resident bytes of the process at most and in the end, and what all processes have of an NVIDIA
device's memory.
"""

import json
import shutil
import subprocess
import sys
import time

TYPE_CHECKING = False  # the module typing would count as a part of the start
if TYPE_CHECKING:
    from typing import Any

MORE_RUNS = 5

ALONE = -2
"""RUNS: none until the session has settled."""


def used_nbytes() -> "int | None":
    """Memory of the first NVIDIA device that is in use, by whomever; None where nvidia-smi does not tell."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout.split()
    return int(said[0]) << 20 if said and said[0].isdigit() else None


def resident() -> "dict[str, int]":
    """Bytes of this process in memory, at most and now, by Linux; empty elsewhere."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return {}
    return {"host_most": int(lines["VmHWM"].split()[0]) << 10, "host_end": int(lines["VmRSS"].split()[0]) << 10}


def opened(side: str, model: str, options: "dict[str, str]") -> "Any":
    if side in ("ours", "gpu"):
        from ort_gpu_ep import InferenceSession

        return InferenceSession(model, provider_options={**options, **({"placement": "gpu"} if side == "gpu" else {})})
    import onnxruntime

    if side == "webgpu" and "WebGpuExecutionProvider" not in onnxruntime.get_available_providers():
        import onnxruntime_ep_webgpu as plugin  # as ort_gpu_ep.cli.peers does it, of which nothing is to be loaded here

        onnxruntime.register_execution_provider_library("webgpu_peer", plugin.get_library_path())
        settings = onnxruntime.SessionOptions()
        settings.add_provider_for_devices(
            [d for d in onnxruntime.get_ep_devices() if d.ep_name == plugin.get_ep_name()][:1], {}
        )
        return onnxruntime.InferenceSession(model, settings)
    names = ["CPUExecutionProvider"] if side == "cpu" else ["WebGpuExecutionProvider", "CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model, providers=names)


def main(
    side: str,
    model: str,
    inputs: "dict[str, tuple[str, list[int]]]",
    options: "dict[str, str]",
    runs: int,
    limit_s: float,
    pause_ms: float,
) -> None:
    begin_s = time.perf_counter()
    import numpy as np

    ours = side in ("ours", "gpu")
    session = opened(side, model, options)
    session_s = time.perf_counter() - begin_s
    feeds = {name: np.zeros(shape, kind) for name, (kind, shape) in inputs.items()}
    session.run(None, feeds)
    first_s = time.perf_counter() - begin_s
    ready = getattr(session, "ready", lambda: True)
    if runs == ALONE and ours:
        session.wait_ready(limit_s)
    settled_s = first_s if ready() else None
    gpu_s = first_s if side in ("gpu", "webgpu") else None
    took_ms: list[float] = []
    more = MORE_RUNS
    while len(took_ms) < runs or (runs < 0 and more and time.perf_counter() - begin_s < limit_s):
        time.sleep(pause_ms * 1e-3)
        start_s = time.perf_counter()
        session.run(None, feeds)
        now_s = time.perf_counter()
        took_ms.append((now_s - start_s) * 1e3)
        more -= settled_s is not None
        if settled_s is None and ready():
            settled_s = now_s - begin_s
        if (
            ours
            and gpu_s is None
            and settled_s is not None
            and set(session.stats().get("runs_by_candidate", {})) - {"cpu"}
        ):
            gpu_s = now_s - begin_s
    if runs == ALONE and ours:
        import psutil

        # probes that the model does not want
        while psutil.Process().children() and time.perf_counter() - begin_s < limit_s:
            time.sleep(0.1)
    found = {
        "session_s": session_s,
        "first_s": first_s,
        "settled_s": settled_s,
        "gpu_s": gpu_s,
        "took_ms": took_ms,
        **resident(),
    }
    found["answered"] = session.stats().get("runs_by_candidate", {}) if ours else {}
    found["device_used"] = None if side == "cpu" else used_nbytes()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    said = sys.argv[1:]
    main(said[0], said[1], json.loads(said[2]), json.loads(said[3]), int(said[4]), float(said[5]), float(said[6]))
