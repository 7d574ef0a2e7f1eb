"""Gains on purpose, so that layouts are chosen whatever the kernels of this version take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.kernels.registry import OPS, BoundNode, ChannelsLast, LayoutRule, OpSpec


@contextmanager
def gaining(*ops: str, gain_ns: float = 1e6, **gains_ns: float) -> Iterator[None]:
    """As if nodes of these ops took that much less channel-last (or what is given by name), and no others anything."""
    wanted = {**dict.fromkeys(ops, gain_ns), **gains_ns}
    saved = dict(OPS)
    for key, spec in saved.items():
        if spec.channels_last is not None:
            OPS[key] = _with_gain(spec, spec.channels_last, wanted.get(spec.name, 0.0))
    try:
        yield
    finally:
        OPS.update(saved)


def _with_gain(spec: OpSpec, rule: LayoutRule, gain_ns: float) -> OpSpec:
    def gains(node: BoundNode) -> ChannelsLast | None:
        form = rule(node)
        return (
            None
            if form is None
            else replace(form, gain_ns=gain_ns or (form.gain_ns if spec.name == "Transpose" else 0.0))
        )

    return replace(spec, channels_last=gains)
