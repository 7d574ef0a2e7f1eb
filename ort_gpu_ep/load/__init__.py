"""How busy is the adapter with other people's work? Sources, one a file, and the thread that reads one."""

from ort_gpu_ep.load.choose import find_source, open_sampler
from ort_gpu_ep.load.sampler import Sampler
from ort_gpu_ep.load.source import Source, SourceError
from ort_gpu_ep.utilization import BANDS, UNKNOWN, Load

__all__ = ["BANDS", "UNKNOWN", "Load", "Sampler", "Source", "SourceError", "find_source", "open_sampler"]
