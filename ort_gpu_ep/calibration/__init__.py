"""Measures an adapter's transfers and kernels once, and stores the result: see docs/placement.md."""

from ort_gpu_ep.calibration.cache import known_profile, profile_of, with_roofs
from ort_gpu_ep.calibration.measure import measure

__all__ = ["known_profile", "measure", "profile_of", "with_roofs"]
