"""The table of pattern rules. Chains of elementwise ops need no rule: Silu and HardSwish become one kernel without
one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.ir.graph import Graph, Node, Step, Value
from ort_gpu_ep.ir.symbolic import is_symbolic, same
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import Facts, bind
from ort_gpu_ep.kernels.registry import Decline, Limits
from ort_gpu_ep.partitioner.patterns import Call, Match, match, trace


@dataclass(frozen=True)
class Built:
    """What a rule makes of a match: a node (its outputs and sources are filled in) and constants it needs."""

    node: Node
    constants: tuple[tuple[str, np.ndarray], ...] = ()


Build: TypeAlias = Callable[[Match, Facts], Built | str]


@dataclass(frozen=True)
class Rule:
    """pattern: the function, its own reference. build: makes the fused node, or says why not."""

    name: str
    pattern: Callable[..., Call]
    build: Build


RULES: list[Rule] = []


def fusion(name: str, pattern: Callable[..., Call]) -> Callable[[Build], Build]:
    """Adds a rule."""

    def add(build: Build) -> Build:
        RULES.append(Rule(name, pattern, build))
        return build

    return add


def apply_rules(graph: Graph, facts: Facts, limits: Limits, rules: Sequence[Rule] | None = None) -> Graph:
    """The graph after every rule has been tried at every node. A node inside a match must not be read from outside
    it."""
    index = _Index(graph)
    for rule in RULES if rules is None else rules:
        root, _ = trace(rule.pattern)
        changed = _apply(index, facts, limits, rule, root)
        index = index if changed is index.graph else _Index(changed)
    return index.graph


class _Index:
    """A graph, and who makes and reads its values: made once for all rules that leave the graph as it is. by_op: its
    nodes, in order."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.producers, self.consumers = graph, graph.producers(), graph.consumers()
        self.by_op: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self.by_op.setdefault(node.op, []).append(node)


def _apply(index: _Index, facts: Facts, limits: Limits, rule: Rule, root: Call) -> Graph:
    graph, replaced = index.graph, dict[int, Node | None]()
    values: dict[str, Value] = {}
    for node in index.by_op.get(root.op, ()):
        matched = match(root, node, graph, index.producers)
        if matched is None or any(id(n) in replaced for n in matched.nodes) or _leaks(matched, graph, index.consumers):
            continue
        built = rule.build(matched, facts)
        if isinstance(built, str):
            continue
        fused = replace(
            built.node,
            outputs=node.outputs,
            id=node.id,
            name=built.node.name or node.name,
            sources=tuple(sorted({i for n in matched.nodes for i in n.members})),
        )
        if not _accepted(fused, built, facts, limits, values):
            continue
        replaced.update({id(n): None for n in matched.nodes})
        replaced[id(node)] = fused
    if not replaced:
        return graph
    nodes = (replaced.get(id(n), n) for n in graph.nodes)
    return graph.with_nodes(tuple(n for n in nodes if n is not None), values)


def _leaks(found: Match, graph: Graph, consumers: dict[str, list[Node]]) -> bool:
    """Whether a value inside the match (not its root's) is read outside it."""
    inside = {id(n) for n in found.nodes}
    for node in found.nodes[1:]:
        if any(
            name in graph.outputs or any(id(c) not in inside for c in consumers.get(name, ())) for name in node.writes
        ):
            return True
    return False


def _accepted(fused: Node, built: Built, facts: Facts, limits: Limits, values: dict[str, Value]) -> bool:
    """Registers the rule's constants, and asks the row of the fused node."""
    for name, array in built.constants:
        values[name] = Value(name, FLOAT32, tuple(array.shape), _giver(array))
        facts.types[name], facts.known[name] = TensorType(FLOAT32, tuple(array.shape)), array
    bound = bind(fused, facts)
    answer = bound if isinstance(bound, Decline) else claim(bound, limits)
    if isinstance(answer, Decline):
        return False
    both = [(facts.types.get(name), tensor) for name, tensor in zip(fused.outputs, answer.outputs, strict=False)]
    if any(before is not None and after is not None and before.rank != after.rank for before, after in both):
        return False  # a number in the match has more axes than what it is applied to: [1, 1, 1]
    for name, tensor in zip(fused.outputs, answer.outputs, strict=False):
        if name and tensor is not None:
            facts.types.setdefault(name, tensor)
    return True


def _giver(array: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: array


@fusion("BatchNormalization", lambda op, x, scale, bias, mean, var: op.BatchNormalization(x, scale, bias, mean, var))
def batch_normalization(found: Match, facts: Facts) -> Built | str:
    """scale * (x - mean) / sqrt(var + epsilon) + bias with constant parameters is x * a + b: elementwise, so that it
    fuses on."""
    node = found.nodes[0]
    if node.attributes.get("training_mode") == 1 or node.version < 7 or len(node.writes) > 1:
        return "training form"
    parameters = [found.constant(v) for v in ("scale", "bias", "mean", "var")]
    x = facts.types.get(found.values["x"])
    if x is None or x.dtype is not FLOAT32 or any(p is None or p.dtype != np.float32 for p in parameters):
        return "parameters are not float32 constants"
    if x.rank < 2 or any(p is not None and p.shape != (x.shape[1],) for p in parameters):
        return "not a parameter for each channel"
    scale, bias, mean, var = (np.asarray(p, np.float64) for p in parameters)
    epsilon = float(node.attributes.get("epsilon", 1e-5))  # type: ignore[arg-type]
    factor = scale / np.sqrt(var + epsilon)
    shape = (-1, *(1,) * (x.rank - 2))
    label = node.outputs[0]
    constants = (
        (f"{label}.factor", factor.astype(np.float32).reshape(shape)),
        (f"{label}.shift", (bias - mean * factor).astype(np.float32).reshape(shape)),
    )
    step = Step("BatchNormalization", "fma(x, y, z)", ("e0", "e1", "e2"), FLOAT32)
    operands = (found.values["x"], constants[0][0], constants[1][0])
    return Built(
        Node("Elementwise", (), (), node.name, "ort_gpu_ep", 1, epilogue=(step,), operands=operands), constants
    )


def _layer_norm(op, x, epsilon, scale, bias):  # type: ignore[no-untyped-def]
    centred = op.Sub(x, op.ReduceMean(x))
    variance = op.ReduceMean(op.Pow(centred, 2.0))
    return op.Add(op.Mul(op.Div(centred, op.Sqrt(op.Add(variance, epsilon))), scale), bias)


def _layer_norm_by_mul(op, x, epsilon, scale, bias):  # type: ignore[no-untyped-def]
    centred = op.Sub(x, op.ReduceMean(x))
    variance = op.ReduceMean(op.Mul(centred, centred))
    return op.Add(op.Mul(op.Div(centred, op.Sqrt(op.Add(variance, epsilon))), scale), bias)


@fusion("LayerNormalization", _layer_norm_by_mul)
@fusion("LayerNormalization", _layer_norm)
def layer_normalization(found: Match, facts: Facts) -> Built | str:
    """The seven to nine nodes that exporters write before opset 17."""
    x, scale, bias = (facts.types.get(found.values[v]) for v in ("x", "scale", "bias"))
    if x is None or scale is None or bias is None:
        return "unknown types"
    if scale.shape != x.shape[-1:] or bias.shape != x.shape[-1:]:
        return f"scale {scale} and bias {bias} are not vectors of the last dimension"
    return _normalized(found, x, "LayerNormalization", 17, ("x", "scale", "bias"))


def _normalized(found: Match, x: TensorType, op: str, version: int, variables: Sequence[str]) -> Built | str:
    """A normalization over the last axis with the match's epsilon."""
    for node in (n for n in found.nodes if n.op == "ReduceMean"):
        axes = node.attributes.get("axes")
        if axes is None and len(node.inputs) > 1:
            numbers = found.graph.constant(node.inputs[1])
            axes = None if numbers is None else tuple(int(a) for a in numbers)
        if axes not in ((-1,), (x.rank - 1,)) or not node.attributes.get("keepdims", 1):
            return f"ReduceMean over axes {axes}, expected the last one, kept"
    epsilon = found.constant("epsilon")
    if epsilon is None or epsilon.size != 1:
        return "epsilon is not a constant"
    attributes = {"axis": -1, "epsilon": float(epsilon.reshape(-1)[0])}
    return Built(Node(op, tuple(found.values[v] for v in variables), (), found.nodes[0].name, "", version, attributes))


def _root(op: Any, x: Any, epsilon: Any) -> Any:
    return op.Sqrt(op.Add(op.ReduceMean(op.Pow(x, 2.0)), epsilon))


@fusion("RMSNormalization", lambda op, x, epsilon, scale: op.Mul(scale, op.Div(x, _root(op, x, epsilon))))
@fusion("RMSNormalization", lambda op, x, epsilon, scale: op.Mul(scale, op.Mul(x, op.Div(1.0, _root(op, x, epsilon)))))
@fusion(
    "RMSNormalization", lambda op, x, epsilon, scale: op.Mul(scale, op.Mul(x, op.Reciprocal(_root(op, x, epsilon))))
)
def rms_normalization(found: Match, facts: Facts) -> Built | str:
    """The six or seven nodes that exporters write before opset 23; onnxruntime makes x / root of x times 1 / root."""
    x, scale = (facts.types.get(found.values[v]) for v in ("x", "scale"))
    if x is None or scale is None or scale.shape != x.shape[-1:]:
        return f"scale {scale} is not a vector of the last dimension of {x}"
    return _normalized(found, x, "RMSNormalization", 23, ("x", "scale"))


def _gelu(op, x, root):  # type: ignore[no-untyped-def]
    return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, root)), 1.0)), 0.5)


def _gelu_halved_before(op, x, root):  # type: ignore[no-untyped-def]
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Div(x, root)), 1.0))


def _gelu_by_mul(op, x, root):  # type: ignore[no-untyped-def]
    return op.Mul(op.Mul(x, op.Add(op.Erf(op.Mul(x, root)), 1.0)), 0.5)


def _gelu_by_mul_halved_before(op, x, root):  # type: ignore[no-untyped-def]
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, root)), 1.0))


@fusion("Gelu", _gelu)
@fusion("Gelu", _gelu_halved_before)
@fusion("Gelu by Mul", _gelu_by_mul)
@fusion("Gelu by Mul", _gelu_by_mul_halved_before)
def gelu(found: Match, facts: Facts) -> Built | str:
    """As a chain it divides, and rounds that correctly: with it a product's steps were as long as the product on an
    H200."""
    root, erf = found.constant("root"), found.node("Erf")
    inside = next(node for node in found.nodes if node.outputs[0] == erf.inputs[0])
    want = 2**0.5 if inside.op == "Div" else 0.5**0.5
    off = 5e-4 if root is not None and root.dtype == np.float16 else 1e-6
    if root is None or root.size != 1 or root.ndim > 1 or abs(float(root.reshape(-1)[0]) - want) > off:
        return f"the error function is of x and another number than {want:.6f}"
    return Built(Node("Gelu", (found.values["x"],), (), erf.name, "", 20, {"approximate": "none"}))


@fusion("ChannelShuffle", lambda op, x, split, joined: op.Reshape(op.Transpose(op.Reshape(x, split)), joined))
def channel_shuffle(found: Match, facts: Facts) -> Built | str:
    """Channels [groups, n] -> [n, groups] of a map, whose two Reshapes would else be in no other layout than they are
    written in."""
    last, transpose, first = found.nodes
    x, parts, y = (facts.types.get(name) for name in (found.values["x"], first.outputs[0], last.outputs[0]))
    if x is None or parts is None or y is None or x.rank != 4 or parts.rank != 5:
        return "no map whose channels are split"
    groups = parts.shape[1]
    split = (x.shape[0], groups, parts.shape[2], *x.shape[2:])
    if transpose.attributes.get("perm") != (0, 2, 1, 3, 4) or is_symbolic(groups) or y.rank != 4:
        return "other axes change places"
    if not all(map(same, (*split, *x.shape), (*parts.shape, *y.shape))) or not same(
        groups * parts.shape[2], x.shape[1]
    ):
        return f"{x} by {parts} to {y}: more than the channels is split"
    attributes = {"groups": int(groups)}
    return Built(Node("ChannelShuffle", (found.values["x"],), (), last.name, "ort_gpu_ep", 1, attributes))


def _with_bias(op, x, w, b, shape):  # type: ignore[no-untyped-def]
    return op.Reshape(op.Gemm(x, w, b), shape)


def _alone(op, x, w, shape):  # type: ignore[no-untyped-def]
    return op.Reshape(op.Gemm(x, w), shape)


@fusion("Gemm of rows", _alone)
@fusion("Gemm of rows, biased", _with_bias)
def gemm_of_rows(found: Match, facts: Facts) -> Built | str:
    """The result's rows stay rows, of more dimensions: then what follows elementwise can go into the product."""
    root, product = found.nodes
    w, out = facts.types.get(product.inputs[1]), facts.types.get(root.outputs[0])
    if w is None or out is None:
        return "unknown types"
    if not out.rank or out.shape[-1] != w.shape[0 if product.attributes.get("transB") else 1]:
        return f"the result's {list(out.shape)} has other rows than the product"
    return Built(
        Node(
            "Gemm",
            product.inputs,
            (),
            product.name,
            "",
            product.version,
            {**product.attributes, "output_shape": out.shape},
        )
    )
