"""What is used of onnxruntime beyond what it documents, in one place: `missing` names what a version lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_inference_collection as _collection
from onnxruntime.capi import onnxruntime_pybind11_state as _binary

OrtSession: Any = _collection.InferenceSession
"""onnxruntime's own class, also where patching.py has put another one in its place."""

OrtBinding: Any = _collection.IOBinding

OrtValue: Any = _collection.OrtValue

device_name: Any = OrtValue.device_name
"""onnxruntime's own answer, also where values.py has put another one in its place: "cpu", and "cuda" for any GPU."""

_EMPTY_MODEL = b"\x08\x08:\x03\x12\x01gB\x04\n\x00\x10\x11"
"""A ModelProto of IR version 8 and opset 17, whose graph has a name and nothing else."""

HOLDERS: tuple[Any, ...] = (onnxruntime, _collection)
"""The modules in which its class of sessions is looked for: a patch puts another one into both."""

OrtValueVector: Any = _binary.OrtValueVector
"""C++'s values, as a run with a binding gives them."""

Fail: Any = _binary.Fail
NotImplemented: Any = _binary.NotImplemented

BEHIND = frozenset(
    (
        "_sess",
        "_sess_options",
        "_inputs_meta",
        "_outputs_meta",
        "_overridable_initializers",
        "_input_meminfos",
        "_output_meminfos",
        "_input_epdevices",
        "_model_meta",
        "_providers",
        "_provider_options",
        "_profiling_start_time_ns",
    )
)
"""What an InferenceSession keeps of the C++ session behind it."""

NEWER = frozenset(("_captured_graph_bindings",))
"""What of that not every version has. 1.32: graphs that WebGPU captured."""

ASKED = frozenset(("_sess_options_initial", "_validate_input"))
"""What else is asked of one."""


def normalized_providers(providers: Any, options: Any, available: list[str]) -> Any:
    """(names, options) as onnxruntime reads what a program gives."""
    return _collection.check_and_normalize_provider_args(providers, options, available)


def behind(session: Any) -> Any:
    """The C++ session of an InferenceSession."""
    return session._sess


def settings_of(session: Any) -> Any:
    """The SessionOptions that an InferenceSession has; None where it was given none."""
    return session._sess_options


def first_settings_of(session: Any) -> Any:
    """The SessionOptions that it was made with, before providers were set anew."""
    return session._sess_options_initial


def copied_settings(settings: Any) -> Any:
    """A SessionOptions of its own, as these are, by a C++ session that is made of no model. It does not keep providers,
    nor libraries of custom operators.
    """
    return _binary.InferenceSession(settings, _EMPTY_MODEL, False, False).session_options


def check_inputs(session: Any, names: list[str]) -> None:
    """Raises what onnxruntime raises where required inputs are missing."""
    session._validate_input(names)


def state_of(session: Any) -> Mapping[str, Any]:
    """What an InferenceSession knows of the C++ session behind it: another one that is given this becomes the same."""
    return {name: value for name, value in vars(session).items() if name in BEHIND | NEWER}


def bound_session(iobinding: Any, otherwise: Any) -> Any:
    """The C++ session that an IOBinding was made of."""
    return getattr(iobinding, "_session", otherwise)


def behind_binding(iobinding: Any) -> Any:
    """The C++ object of an IOBinding."""
    return iobinding._iobinding


def missing(session: Any) -> list[str]:
    """What this version of onnxruntime lacks of all that, sorted. session: any InferenceSession."""
    binding = session.io_binding()
    return sorted(
        [
            *(f"InferenceSession.{name}" for name in BEHIND | ASKED if not hasattr(session, name)),
            *(f"IOBinding.{name}" for name in ("_iobinding",) if not hasattr(binding, name)),
            *(
                f"SessionOptions of a {name}"
                for name in ("session_options",)
                if not hasattr(_binary.InferenceSession, name)
            ),
            *(
                f"onnxruntime_inference_collection.{name}"
                for name in ("check_and_normalize_provider_args",)
                if not hasattr(_collection, name)
            ),
        ]
    )
