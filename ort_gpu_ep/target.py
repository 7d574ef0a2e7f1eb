"""What a plan is made for: an adapter's limits. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

OFFSET_ALIGNMENT = 256
"""Where in a buffer a binding may begin: a multiple of what WebGPU lets every adapter ask for."""

ADAPTER, PACKED, WORKGROUP = "adapter", "packed elements", "workgroup memory"
"""What Limits.disabled may name besides shader files and device features: everything, bindings of 8 and 16 bits, shared memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an adapter offers (WebGPU's guaranteed minimum by default). Sizes in bytes.

    max_loop_iterations: of all loops of an invocation together (kernels.py); the default is the least that any known driver does.
    disabled: (what, why) of what this driver can't be trusted with: a shader file, a device feature, ADAPTER, PACKED, WORKGROUP.
    """

    features: frozenset[str] = frozenset()
    max_binding_nbytes: int = 128 << 20
    max_buffer_nbytes: int = 256 << 20
    max_buffers_per_stage: int = 8
    max_workgroup_nbytes: int = 16384
    max_invocations: int = 256
    max_groups_per_dimension: int = 65535
    offset_alignment: int = OFFSET_ALIGNMENT
    max_loop_iterations: int = 65535
    disabled: tuple[tuple[str, str], ...] = ()
