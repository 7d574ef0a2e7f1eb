"""What gunicorn serves: MODEL's answer, and where it comes from, as JSON. SESSIONS says who makes the session: the
process that forks (`before`), which has run it, too, or each worker (`after`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import ort_gpu_ep

X = np.linspace(-1, 1, 6, dtype="f").reshape(2, 3)


def opened() -> Any:
    session = ort_gpu_ep.InferenceSession(os.environ["MODEL"])
    session.run(None, {"x": X})
    return session


_session = opened() if os.environ.get("SESSIONS") == "before" else None


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    global _session
    _session = _session or opened()
    before = _session.stats()
    y = _session.run(None, {"x": X})[0]
    after = _session.stats()
    told = {
        "y": y.tolist(),
        "missing": _session.missing_gpu,
        "parent": os.getppid(),
        "pid": os.getpid(),
        "on_gpu": after["runs"] - before["runs"] > after["fallbacks"] - before["fallbacks"],
    }
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(told).encode()]
