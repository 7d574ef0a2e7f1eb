"""The ONNX Runtime plugin: registration, and the state of each session. The only package that uses the C ABI."""

from ort_gpu_ep.plugin.bound import Turns, download_later, fill, lacks_room
from ort_gpu_ep.plugin.direct import Direct
from ort_gpu_ep.plugin.ort_sessions import exact_products, ort_session
from ort_gpu_ep.plugin.plain import OrtSession, PlainSession
from ort_gpu_ep.plugin.registration import (
    ensure_registered,
    get_available_providers,
    get_ep_name,
    get_ep_names,
    get_library_path,
    is_registered,
    register,
    too_old,
    unregister,
)
from ort_gpu_ep.plugin.state import COPIES, Copies, Event, SessionState, capture, fall_back_or_raise
from ort_gpu_ep.plugin.tables import live_tables
from ort_gpu_ep.providers import CPU_PROVIDER, EP_NAME, VENDOR_ID

__all__ = [
    "COPIES",
    "CPU_PROVIDER",
    "EP_NAME",
    "VENDOR_ID",
    "Copies",
    "Direct",
    "Event",
    "OrtSession",
    "PlainSession",
    "SessionState",
    "Turns",
    "capture",
    "download_later",
    "ensure_registered",
    "exact_products",
    "fall_back_or_raise",
    "fill",
    "get_available_providers",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "is_registered",
    "lacks_room",
    "live_tables",
    "ort_session",
    "register",
    "too_old",
    "unregister",
]
