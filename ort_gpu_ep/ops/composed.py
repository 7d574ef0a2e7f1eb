"""Ops composed of other ops' kernels, one after the other with temporaries, as one lowering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.graph import Attribute, Node, Step
from ort_gpu_ep.ir.types import DType, Shape, TensorType, dtype_of
from ort_gpu_ep.kernels.records import completed
from ort_gpu_ep.kernels.registry import (
    OPS,
    BoundNode,
    InPlace,
    Kernel,
    Lowering,
    Operand,
    Strided,
    broadcast,
    broadcast_strides,
    kernel,
)


@dataclass(frozen=True, slots=True)
class Part:
    """A value on the way. source: an input of the node, or a temporary; None: the host knows the content alone."""

    source: int | str | None
    operand: Operand

    @property
    def shape(self) -> Shape:
        return self.operand.shape

    def seen(self, shape: Shape) -> Part:
        """The same elements as a tensor of that shape."""
        if self.shape == shape:
            return self
        return replace(self, operand=replace(self.operand, type=TensorType(self.operand.dtype, shape), content=None))


def known(values: Any, dtype: str = "int64") -> Part:
    """What a row wants to know before the run: axes, shapes."""
    array = np.asarray(values, dtype)
    return Part(None, Operand("", TensorType(dtype_of(array), array.shape), array))


def step_of(op: str, dtype: DType, version: int, attributes: Mapping[str, Attribute]) -> Step:
    """An elementwise op of one input as a step behind what computes that. Raises UnsupportedNodeError where its row
    does not take it."""
    operand = Operand("x", TensorType(dtype, (1,)))
    built = OPS["", op].build(BoundNode(Node(op, ("x",), ("y",), version=version, attributes=attributes), (operand,)))
    assert isinstance(built, Kernel)  # as all elementwise rows make it
    return replace(built.step, arguments=("v",))


@dataclass
class Composed:
    """The kernels of a node's parts, as they come together. in_place: of the last part that can change an input in
    place."""

    node: BoundNode
    kernels: list[Kernel] = field(default_factory=list)
    temps: dict[str, TensorType] = field(default_factory=dict)
    once: list[str] = field(default_factory=list)
    dense: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    stored: list[tuple[str, int]] = field(default_factory=list)
    outputs: dict[int, TensorType] = field(default_factory=dict)
    in_place: InPlace | None = None
    count: int = 0

    def given(self, index: int) -> Part:
        """An input of the node."""
        return Part(index, self.node.input(index))

    def optional(self, index: int) -> Part | None:
        return self.given(index) if self.node.has(index) else None

    def add(
        self,
        op: str,
        *inputs: Part | None,
        version: int = 13,
        domain: str = "",
        to: int | None = None,
        channels_last: bool = False,
        steps: Sequence[Step] = (),
        **attributes: Attribute,
    ) -> Part:
        """Another op on such values. to: the output of the node that its first one is. steps: elementwise ones, as the
        op's row lets fusion append them. Raises UnsupportedNodeError where its row does not take it.
        """
        (first,) = self.add_all(
            op,
            inputs,
            (to,),
            version=version,
            domain=domain,
            channels_last=channels_last,
            steps=steps,
            attributes=attributes,
        )
        return first

    def add_all(
        self,
        op: str,
        inputs: Sequence[Part | None],
        to: Sequence[int | None],
        *,
        version: int = 13,
        domain: str = "",
        channels_last: bool = False,
        steps: Sequence[Step] = (),
        attributes: Mapping[str, Attribute] | None = None,
    ) -> tuple[Part, ...]:
        """Likewise of an op with several outputs."""
        self.count += 1
        spec, number = OPS[domain, op], self.count
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        constant = all(part is None or part.operand.is_constant for part in inputs) and not any(
            at is not None for at in to
        )
        names = tuple(f"{number}.x{i}" if part else "" for i, part in enumerate(inputs))
        part = Node(
            op,
            names,
            tuple(f"{number}.y{i}" for i in range(len(to))),
            self.node.node.name,
            domain,
            version,
            attributes or {},
            channels_last=channels_last,
        )
        operands = tuple(
            replace(p.operand, name=p.operand.name or n) if p else None for n, p in zip(names, inputs, strict=True)
        )
        built = completed(spec, BoundNode(part, operands, target=self.node.target))
        if steps:
            built = self._ending_in(built, steps)
        sources = [p.source if p else None for p in inputs]
        parts = self._merged(built, sources, to, str(number))
        if not constant:
            return parts
        return tuple(replace(part, operand=replace(part.operand, constant=True)) for part in parts)

    def part(self, op: str, operands: Sequence[Operand], attributes: Mapping[str, Attribute]) -> BoundNode:
        """An op on such operands, only to ask what may become of it."""
        names = tuple(operand.name for operand in operands)
        return BoundNode(
            Node(op, names, ("y",), version=11, attributes=attributes), tuple(operands), target=self.node.target
        )

    def computed(self, built: Kernel, to: int | None = None, steps: Sequence[Step] = ()) -> Part:
        """What a kernel of the node itself makes: it reads inputs and temporaries, and writes `y`. steps: elementwise
        ones behind it."""
        self.count += 1
        tensor, source = built.outputs[0], f"{self.count}.y" if to is None else to
        if steps:
            built = replace(built, plain=tensor, epilogue=tuple(steps))
        self.kernels.append(replace(built, writes=(("y", f"{self.count}.y"),)))
        self.temps[f"{self.count}.y"] = tensor
        if to is not None:
            self.outputs[to] = tensor
            self.stored.append((f"{self.count}.y", to))
        return Part(f"{self.count}.y", Operand(str(source), tensor))

    def elementwise(
        self,
        expression: str,
        *inputs: Part,
        dtype: DType,
        to: int | None = None,
        steps: Sequence[Step] = (),
    ) -> Part:
        """WGSL over x, y, z, w, which are the inputs, broadcast against each other. steps: behind it. Of constants it
        is computed once."""
        shape = broadcast(*(part.shape for part in inputs))
        reads = {f"e{k}": part.source for k, part in enumerate(inputs) if part.source is not None}
        chain = [Step(self.node.op, expression, tuple(reads), dtype)]
        chain += [replace(step, arguments=(f"s{k}",)) for k, step in enumerate(steps)]
        built = kernel(
            "elementwise.wgsl",
            [TensorType(chain[-1].dtype, shape)],
            reads=reads,
            epilogue=chain,
            indices={
                f"e{k}_index": Strided(shape, broadcast_strides(part.shape, shape)) for k, part in enumerate(inputs)
            },
        )
        result = self.computed(built, to)
        if to is not None or not all(part.operand.is_constant for part in inputs):
            return result
        return replace(result, operand=replace(result.operand, constant=True))

    def store(self, part: Part, to: int) -> None:
        """Makes a temporary an output of the node that other parts read, too."""
        self.outputs[to] = part.operand.type
        self.stored.append((str(part.source), to))

    @staticmethod
    def _ending_in(built: Lowering, steps: Sequence[Step]) -> Lowering:
        """With steps behind what writes its first output; they read nothing else."""
        return replace(
            built,
            kernels=tuple(
                replace(k, plain=k.outputs[0], epilogue=tuple(steps))
                if any(target == 0 for _, target in k.writes or ())
                else k
                for k in built.kernels
            ),
        )

    def _merged(
        self, built: Lowering, sources: Sequence[int | str | None], to: Sequence[int | None], prefix: str
    ) -> tuple[Part, ...]:
        """Takes over a part's kernels, under names of its own."""
        places: dict[int, int | str] = {k: f"{prefix}.y{k}" if at is None else at for k, at in enumerate(to)}
        views, stored_at = dict(built.views), {at: name for name, at in built.stored}

        def source_of(at: int | str) -> int | str:
            source = f"{prefix}.{at}" if isinstance(at, str) else sources[at]
            if source is None:
                raise InternalError(f"{self.node.op}: a kernel of its part {prefix} reads what the host alone knows")
            return source

        def renamed(one: Kernel) -> Kernel:
            reads = tuple((name, source_of(at)) for name, at in one.reads or ())
            writes = tuple(
                (name, f"{prefix}.{at}" if isinstance(at, str) else places[at]) for name, at in one.writes or ()
            )
            return replace(one, reads=reads, writes=writes)

        if built.in_place is not None:
            pairs = [(places[output], sources[pair_input]) for output, pair_input in built.in_place.pairs]
            if all(isinstance(at, int) for pair in pairs for at in pair):
                before = (*self.kernels, *(renamed(one) for one in built.in_place.kernels))
                self.in_place = InPlace(tuple(pairs), before)  # type: ignore[arg-type]
        self.kernels += [renamed(one) for one in built.kernels]
        self.temps |= {f"{prefix}.{name}": tensor for name, tensor in built.temps}
        for names, part in ((self.once, built.once), (self.dense, built.dense), (self.kept, built.kept)):
            names += [f"{prefix}.{name}" for name in part]
        parts = []
        for k, at in enumerate(to):
            tensor = built.outputs[k]
            if tensor is None:
                raise InternalError(f"{self.node.op}: its part {prefix} does not make output {k}")
            source = places[k]
            if k in views:
                origin = sources[views[k]]
                if at is not None or origin is None:
                    raise InternalError(
                        f"{self.node.op}: its part {prefix} is a view, which can't be an output of its own"
                    )
                source = origin
            elif at is not None:
                self.outputs[at] = tensor
                if k in stored_at:
                    self.stored.append((f"{prefix}.{stored_at[k]}", at))
            elif k in stored_at:
                source = f"{prefix}.{stored_at[k]}"
            else:
                self.temps[str(source)] = tensor
            parts.append(Part(source, Operand(str(source), tensor)))
        return tuple(parts)

    def before(self, rest: Lowering) -> Lowering:
        """What reads the parts' temporaries, behind them."""
        return replace(
            rest,
            kernels=(*self.kernels, *rest.kernels),
            temps=(*self.temps.items(), *rest.temps),
            once=(*self.once, *rest.once),
            dense=(*self.dense, *rest.dense),
            kept=(*self.kept, *rest.kept),
        )

    def lowering(self, outputs: Sequence[TensorType | None] = ()) -> Lowering:
        """outputs: their types, where parts did not make them as the node has them."""
        parts = [self.outputs.get(k) for k in range(max(1, len(self.node.node.outputs)))]
        for k, tensor in enumerate(outputs[: len(parts)]):
            parts[k] = tensor
        return Lowering(
            tuple(parts),
            tuple(self.kernels),
            tuple(self.temps.items()),
            once=tuple(self.once),
            dense=tuple(self.dense),
            kept=tuple(self.kept),
            stored=tuple(self.stored),
            in_place=self.in_place,
        )
