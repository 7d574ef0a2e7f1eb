"""Reverse-mode differentiation: gradients of values from the gradients of what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.training import rules
from ort_gpu_ep.training.gradient import RULES, STOPS, Site, missing_rule
from ort_gpu_ep.training.writer import Value, Writer

rules.load()


def differentiate(writer: Writer, tape: Sequence[onnx.NodeProto], seeds: Mapping[str, Value]) -> dict[str, Value]:
    """Gradients of a scalar with respect to every tracked value that it depends on.

    tape: the nodes that were written, in order. seeds: of some values by name, the scalar's gradient, as direct as it
    is known.

    Raises: TrainingError, for a node on the way that has no rule.
    """
    gradients = dict(seeds)
    for node in reversed(tape):
        grads = tuple(gradients.get(name) if name else None for name in node.output)
        inputs = tuple(writer.values.get(name) if name else None for name in node.input)
        is_tracked = any(v is not None and v.tracked for v in inputs)
        if not is_tracked or all(g is None for g in grads) or (node.op_type in STOPS and not node.domain):
            continue
        rule = RULES.get((node.domain, node.op_type))
        if rule is None:
            raise missing_rule(node)
        site = Site(
            node, writer, inputs, tuple(writer.values.get(name) if name else None for name in node.output), grads
        )
        _take(site, rule(site), gradients)
    return gradients


def _take(site: Site, given: Sequence[Value | None], found: dict[str, Value]) -> None:
    """Adds a node's gradients to what is found. A value that is read twice gets the sum."""
    for i, grad in enumerate(given):
        value = site.optional(i)
        if grad is None or value is None or not value.tracked:
            continue
        if grad.shape_or_none != value.shape_or_none or grad.dtype != value.dtype:
            raise InternalError(
                f"{site.label}: the gradient of input {i} is {grad.dtype} {grad.shape_or_none}, "
                f"but the input is {value.dtype} {value.shape_or_none}"
            )
        found[value.name] = found[value.name] + grad if value.name in found else grad
