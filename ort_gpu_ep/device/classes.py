"""Classes of GPUs as data: an adapter can be restricted to the limits of one, to test for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.kernels.registry import Limits


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """features: of device/info.py's FEATURES. limits: WebGPU's, by its names; an adapter keeps those that are not
    named.

    subgroups: the fewest and the most invocations of one; (0, 0) where there are none. source: where the numbers are
    from.
    """

    name: str
    what: str
    source: str
    features: frozenset[str]
    subgroups: tuple[int, int]
    limits: Mapping[str, int]

    def as_limits(self, without: Collection[str] = ()) -> Limits:
        """What kernels may use. without: features that are left out."""
        own, (least, most) = {**classes()["minimum"].limits, **self.limits}, self.subgroups
        return Limits(
            self.features - {*without},
            own["maxStorageBufferBindingSize"],
            own["maxBufferSize"],
            min(own["maxStorageBuffersPerShaderStage"], 32),
            own["maxComputeWorkgroupStorageSize"],
            own["maxComputeInvocationsPerWorkgroup"],
            own["maxComputeWorkgroupsPerDimension"],
            own["minStorageBufferOffsetAlignment"],
            subgroup_size=least if least == most else 0,
        )


@cache
def classes() -> Mapping[str, DeviceClass]:
    """By name, in the order of the file."""
    data = json.loads((files("ort_gpu_ep.device") / "classes.json").read_text("utf-8"))
    return {
        name: DeviceClass(
            name, **(entry | {"features": frozenset(entry["features"]), "subgroups": tuple(entry["subgroups"])})
        )
        for name, entry in data.items()
    }


def named(name: str) -> DeviceClass:
    """Raises ConfigError, naming what there is."""
    if name not in classes():
        raise ConfigError(f"device class {name!r}: there is none of that name; there are {', '.join(classes())}")
    return classes()[name]
