"""What PyInstaller makes a program of: MODEL on the GPU, a training step, and a child that names the CPU. Prints
JSON."""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

import numpy as np

X = np.linspace(-1, 1, 6, dtype="f").reshape(2, 3)


def child(path: str, queue: Any) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    queue.put([session.get_providers(), session.run(None, {"x": X})[0].tolist()])


def main(path: str) -> None:
    import ort_gpu_ep
    from ort_gpu_ep.training import SGD, Trainer

    session = ort_gpu_ep.InferenceSession(path, provider_options={"placement": "gpu", "strict": "1"})
    told: dict[str, Any] = {"y": session.run(None, {"x": X})[0].tolist(), "gpu": session.explain().count("gpu")}
    trainer = Trainer(path, loss="mse", optimizer=SGD(0.1), options={"placement": "gpu"})
    told["losses"] = [float(trainer.step(X, np.zeros((2, 4), "f"))) for _ in range(3)]
    isolated = ort_gpu_ep.InferenceSession(path, provider_options={"placement": "gpu", "isolation": "process"})
    told["isolated"], told["missing"] = isolated.run(None, {"x": X})[0].tolist(), isolated.missing_gpu
    spawned = multiprocessing.get_context("spawn")
    with ort_gpu_ep.patch({"placement": "gpu"}):
        queue = spawned.Queue()
        process = spawned.Process(target=child, args=(path, queue))
        process.start()
        told["child"] = queue.get(timeout=300)
        process.join()
    print(json.dumps(told))


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main(sys.argv[1])
