"""One new process from its imports to its first result, and on until it has settled: what benchmarks/start.py starts many of.

    python -m benchmarks.start_process SIDE MODEL INPUTS OPTIONS RUNS

SIDE: `cpu` (onnxruntime's CPU provider), `webgpu` (its WebGPU provider) or `ours`. INPUTS: JSON, name -> [numpy type, shape]; zeros are
fed. OPTIONS: JSON, of our provider. RUNS: how many follow the first one; with -1 as many as it takes until the session has settled. Prints
JSON: seconds to the session, to the first result, until it settled, which candidates answered, and milliseconds of the runs that followed.
"""

import json
import sys
import time


def main(side: str, model: str, inputs: dict[str, tuple[str, list[int]]], options: dict[str, str], runs: int) -> None:
    begin_s = time.perf_counter()
    import numpy as np

    if side == "ours":
        from ort_gpu_ep import InferenceSession

        session = InferenceSession(model, provider_options=options)
    else:
        import onnxruntime

        names = ["CPUExecutionProvider"] if side == "cpu" else ["WebGpuExecutionProvider", "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(model, providers=names)
    session_s = time.perf_counter() - begin_s
    feeds = {name: np.zeros(shape, kind) for name, (kind, shape) in inputs.items()}
    session.run(None, feeds)
    first_s = time.perf_counter() - begin_s
    ready = getattr(session, "ready", lambda: True)
    settled_s = first_s if ready() else None
    took_ms = []
    while len(took_ms) < runs or (runs < 0 and settled_s is None):
        start_s = time.perf_counter()
        session.run(None, feeds)
        now_s = time.perf_counter()
        took_ms.append((now_s - start_s) * 1e3)
        if settled_s is None and ready():
            settled_s = now_s - begin_s
    found = {"session_s": session_s, "first_s": first_s, "settled_s": settled_s, "took_ms": took_ms}
    found["answered"] = session.stats().get("runs_by_candidate", {}) if side == "ours" else {}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]), int(sys.argv[5]))
