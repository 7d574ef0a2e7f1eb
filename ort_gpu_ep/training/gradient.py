"""The registry of gradients, and what a rule sees of a node. docs/adding-a-gradient.md explains how to write one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

import onnx
from onnx import helper

from ort_gpu_ep.errors import InternalError, TrainingError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.schemas import default_attribute
from ort_gpu_ep.training.writer import Value, Writer, schema_of


@dataclass(frozen=True)
class Site:
    """A node that is differentiated.

    inputs, outputs: its values, None where left out. grads: of each output, None where the loss does not depend on it.
    """

    node: onnx.NodeProto
    writer: Writer
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    grads: tuple[Value | None, ...]

    @property
    def x(self) -> Value:
        """The first input."""
        return self.input(0)

    @property
    def y(self) -> Value:
        """The first output."""
        assert self.outputs[0] is not None
        return self.outputs[0]

    @property
    def dy(self) -> Value:
        """The first output's gradient. Raises TrainingError where only another output of the node has one."""
        if self.grads[0] is None:
            raise self.unsupported("the loss depends on another output than its first one")
        return self.grads[0]

    def input(self, index: int) -> Value:
        value = self.optional(index)
        if value is None:
            raise InternalError(f"{self.label}: input {index} is left out, but its gradient reads it")
        return value

    def optional(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def wants(self, index: int) -> bool:
        """Whether the gradient of an input is needed."""
        value = self.optional(index)
        return value is not None and value.tracked and value.is_float

    def attr(self, name: str) -> Any:
        """An attribute, its default by the schema, or None where it has neither. Texts are str, lists tuples."""
        for a in self.node.attribute:
            if a.name == name:
                return _plain(helper.get_attribute_value(a))
        schema = schema_of(self.node.op_type, self.writer.opset, self.node.domain)
        return (
            None
            if schema is None
            else _plain(default_attribute(self.node.domain, self.node.op_type, schema.since_version, name))
        )

    def constant(self, index: int) -> Array | None:
        """The content of an input that must be known before the run; None where it is left out. Raises
        TrainingError."""
        value = self.optional(index)
        if value is None:
            return None
        if value.content is None:
            raise self.unsupported(
                f"its input {value.name!r} is known only when it runs; its gradient needs a constant"
            )
        return value.content

    @property
    def label(self) -> str:
        """For messages."""
        return label_of(self.node)

    def unsupported(self, reason: str) -> TrainingError:
        """The error for a form of the op that has no gradient here."""
        return TrainingError(f"{self.label} has no gradient here: {reason}. {ADVICE}")


ADVICE = (
    "Freeze what comes before it (trainable=[patterns of later weights]), replace it, or add a rule "
    "(docs/adding-a-gradient.md)"
)

Gradients: TypeAlias = Sequence[Value | None]
Rule: TypeAlias = Callable[[Site], Gradients]

RULES: dict[tuple[str, str], Rule] = {}
"""(domain, op) -> its gradient."""

STOPS: set[str] = set()
"""Ops that no gradient passes: their outputs are constant wherever they are differentiable, or no floats."""


def gradient(*ops: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Adds a rule: from a Site to the gradient of each input, in order; None (or a shorter list) where there is
    none."""

    def add(rule: Rule) -> Rule:
        for op in ops:
            if (domain, op) in RULES or op in STOPS:
                raise InternalError(f"op {op} has two gradients")
            RULES[domain, op] = rule
        return rule

    return add


def label_of(node: onnx.NodeProto) -> str:
    return (
        f"node {node.name or next(iter(n for n in node.output if n), '')!r} "
        f"({node.domain + ':' if node.domain else ''}{node.op_type})"
    )


def missing_rule(node: onnx.NodeProto) -> TrainingError:
    """The error for a node whose op has no rule."""
    near = get_close_matches(node.op_type, [op for _, op in RULES], 1, 0.8)
    hint = f" ({near[0]} has one)" if near else ""
    return TrainingError(f"{label_of(node)} has no gradient here: there is no rule for {node.op_type}{hint}. {ADVICE}")


def axes_of(site: Site, index: int = 1) -> list[int]:
    """The axes of a reduction or of a Squeeze, from an attribute or an input; empty: none is given."""
    axes = site.attr("axes")
    if axes is None:
        constant = site.constant(index)
        axes = () if constant is None else tuple(int(a) for a in constant)
    return sorted(int(a) % site.x.rank for a in axes)


def axis_of(site: Site, default: int = 0) -> int:
    """The axis attribute, counted from the front."""
    axis = site.attr("axis")
    return int(default if axis is None else axis) % site.x.rank


def per_channel(value: Value, rank: int) -> Value:
    """A vector over channels, as it broadcasts to [N, C, ...]."""
    return value.writer.reshape(value, (value.shape[0],) + (1,) * (rank - 2))


def _plain(value: Any) -> Any:
    """Texts as str, lists as tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    return value.decode() if isinstance(value, bytes) else value
