"""How busy is the adapter with other people's work? Sources, one a file, and the thread that reads one.

sampler = open_sampler(info, config.load, LazyTimedDispatch(info), order_among_equals(info))     # None with load=off

load = sampler.latest if sampler else UNKNOWN           # for each run, which placement/decider.py has go by it
...                                                     # run it
if sampler and candidate != "cpu":
    sampler.used(idle_s[candidate])                     # our own work, where the source can't tell it from others'
"""

from ort_gpu_ep.load.choose import find_source, open_sampler
from ort_gpu_ep.load.sampler import Sampler
from ort_gpu_ep.load.source import Source, SourceError
from ort_gpu_ep.utilization import BANDS, UNKNOWN, Load

__all__ = ["BANDS", "UNKNOWN", "Load", "Sampler", "Source", "SourceError", "find_source", "open_sampler"]
