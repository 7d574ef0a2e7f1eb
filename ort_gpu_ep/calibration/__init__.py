"""Measures what an adapter takes, once, and keeps it: see docs/placement.md."""

from ort_gpu_ep.calibration.cache import profile_of, with_roofs
from ort_gpu_ep.calibration.measure import measure

__all__ = ["measure", "profile_of", "with_roofs"]
