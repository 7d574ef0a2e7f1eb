"""Sessions of onnxruntime's own class, also where patching.py makes ours of those, and what all sessions ask of
onnxruntime."""

from __future__ import annotations

from typing import Any

import onnxruntime

from ort_gpu_ep.private import OrtSession

_ACCURACY = "session.qdq_matmulnbits_accuracy_level"

_init = OrtSession.__init__


def ort_session(*arguments: Any, **named: Any) -> Any:
    """A session of onnxruntime's own class, also where patching.py makes ours of those."""
    session = object.__new__(OrtSession)
    _init(session, *arguments, **named)
    return session


def exact_products(settings: Any) -> Any:
    """The SessionOptions (new ones for None), asking for products of float activations with quantised weights as the
    file has them.

    By default onnxruntime's CPU rounds the activations of DequantizeLinear + MatMul to 8 bits: 5e-3 off what the same
    file gives elsewhere. What the settings say of it already stays.
    """
    settings = settings if settings is not None else onnxruntime.SessionOptions()
    try:
        settings.get_session_config_entry(_ACCURACY)
    except RuntimeError:  # not there
        settings.add_session_config_entry(_ACCURACY, "1")
    return settings
