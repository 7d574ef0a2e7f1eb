"""onnxruntime's own session class, whoever has put another one under its name since, and kept from Ctrl-C halfway."""

from __future__ import annotations

from typing import Any, Protocol

from onnxruntime.capi import onnxruntime_inference_collection

from ort_gpu_ep.interrupts import uninterrupted

OrtSession: Any = onnxruntime_inference_collection.InferenceSession

_ACCURACY = "session.qdq_matmulnbits_accuracy_level"

_init = OrtSession.__init__


def ort_session(*arguments: Any, **named: Any) -> Any:
    """A session of onnxruntime's own class, also where patching.py makes ours of those."""
    session = object.__new__(OrtSession)
    _init(session, *arguments, **named)
    return session


class Shortcut(Protocol):
    """A way past onnxruntime, see direct.py."""

    def run(self, output_names: Any, feeds: Any) -> list[Any] | None:
        """The answer, None where onnxruntime is to give it."""

    def passed(self, output_names: Any, feeds: Any) -> None:
        """onnxruntime has answered a run with these inputs and outputs."""


def exact_products(settings: Any) -> Any:
    """The SessionOptions (new ones for None), asking for products of float activations with quantised weights as the file has them.

    By default onnxruntime's CPU rounds the activations of DequantizeLinear + MatMul to 8 bits: 5e-3 off what the same file gives elsewhere.
    What the settings say of it already stays.
    """
    settings = settings if settings is not None else onnxruntime_inference_collection.C.SessionOptions()
    try:
        settings.get_session_config_entry(_ACCURACY)
    except RuntimeError:        # not there
        settings.add_session_config_entry(_ACCURACY, "1")
    return settings


class PlainSession(OrtSession):  # type: ignore[misc]  # onnxruntime has no types
    """onnxruntime's session. A Ctrl-C takes effect when what it does is done: KeyboardInterrupt, and the session goes on.

    direct: how runs get past onnxruntime, None where they don't.
    """

    direct: Shortcut | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        uninterrupted(OrtSession.__init__, self, *arguments, **named)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        direct = self.direct if run_options is None else None
        if direct is None:
            return uninterrupted(OrtSession.run, self, output_names, input_feed, run_options)
        answer = uninterrupted(direct.run, output_names, input_feed)
        if answer is None:
            answer = uninterrupted(OrtSession.run, self, output_names, input_feed, run_options)
            direct.passed(output_names, input_feed)
        return answer

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        uninterrupted(OrtSession.run_with_iobinding, self, iobinding, run_options)

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        return uninterrupted(OrtSession.run_with_ort_values, self, output_names, input_dict_ort_values, run_options)
