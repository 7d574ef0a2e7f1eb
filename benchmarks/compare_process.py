"""One process of benchmarks/compare.py: times runs of models with whatever ort_gpu_ep PYTHONPATH leads to.

    python compare_process.py REQUEST

REQUEST: JSON: models (name -> [file, file with inputs]), options of the provider, runs, seconds of warming up. Prints
JSON: name -> milliseconds of each run, or why there are none. It uses nothing but what every version of the package
has.
"""

import json
import sys
import time
from typing import Any


def times(model: str, inputs: str, options: dict[str, str], runs: int, warm_s: float) -> list[float]:
    """Milliseconds of whole runs, numpy in, numpy out."""
    import numpy as np
    import onnxruntime

    import ort_gpu_ep

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session: Any = ort_gpu_ep.InferenceSession(model, settings, provider_options=options)
    feeds = dict(np.load(inputs))
    begin, done = time.perf_counter(), 0
    while done < 3 or time.perf_counter() - begin < warm_s:
        session.run(None, feeds)
        done += 1
    found = []
    for _ in range(runs):
        begin = time.perf_counter()
        session.run(None, feeds)
        found.append((time.perf_counter() - begin) * 1e3)
    return found


def main() -> None:
    asked = json.loads(sys.argv[1])
    answer: dict[str, Any] = {}
    for name, (model, inputs) in asked["models"].items():
        try:
            answer[name] = times(model, inputs, asked["options"], asked["runs"], asked["warm_s"])
        except Exception as error:  # a version that can't run a model is a result
            answer[name] = f"{type(error).__name__}: {str(error)[:200]}"
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
