"""Each pattern rule as an ONNX model: a rule's pattern is its own reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ort_gpu_ep.partitioner.fusions import RULES, Rule
from ort_gpu_ep.partitioner.patterns import Call, Variable, trace

Array = np.ndarray[Any, Any]


def _vectors(rng: np.random.Generator, size: int, *names: str) -> dict[str, Array]:
    return {n: rng.uniform(0.5, 2.0, size).astype(np.float32) for n in names}


def _layer_norm(rng: np.random.Generator) -> dict[str, Array]:
    return {"epsilon": np.array(1e-3, np.float32), **_vectors(rng, 17, "scale", "bias")}


def _stack(gates: int, depth: int) -> Any:
    """Weights of `depth` layers of 5 units over 3 inputs."""

    def constants(rng: np.random.Generator) -> dict[str, Array]:
        found: dict[str, Array] = {"axes": np.array([1])}
        for k in range(depth):
            shapes = {"w": (1, gates * 5, 5 if k else 3), "r": (1, gates * 5, 5), "b": (1, gates * 10)}
            found |= {f"{name}{k}": rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
        return found

    return constants


def _attention(rng: np.random.Generator, name: str) -> dict[str, Array]:
    """Constant keys and values for queries [2, 3, 5, 8]."""
    found = {
        "keys": rng.uniform(-1, 1, (2, 3, 6, 8)).astype(np.float32),
        "values": rng.uniform(-1, 1, (2, 3, 6, 12)).astype(np.float32),
    }
    found |= {"scale": np.array(1.7, np.float32)} if "scaled" in name or "divided" in name else {}
    return found | ({"mask": rng.uniform(-1, 1, (2, 1, 5, 6)).astype(np.float32)} if "masked" in name else {})


EXPORTED = [
    ", ".join(("attention", *parts))
    for parts in (
        [p for p in (scaled, masked, guarded, transposed) if p]
        for scaled in ("scaled", "divided", "")
        for masked in ("masked", "")
        for guarded in ("guarded", "")
        for transposed in ("transposed", "")
    )
]
OF_ONNX = [
    ", ".join(("Attention", *[p for p in (masked, transposed) if p]))
    for masked in ("masked", "")
    for transposed in ("transposed", "")
]


def _rows(rng: np.random.Generator, biased: bool) -> dict[str, Array]:
    bias = _vectors(rng, 12, "b") if biased else {}
    return {"w": rng.normal(size=(8, 12)).astype(np.float32), **bias, "shape": np.array([2, 3, 12])}


EXAMPLES: dict[str, tuple[tuple[int, ...], Any, dict[str, dict[str, object]]]] = {
    "BatchNormalization": (
        (2, 7, 5, 3),
        lambda rng: _vectors(rng, 7, "scale", "bias", "mean", "var"),
        {"BatchNormalization": {"epsilon": 1e-3}},
    ),
    "ChannelShuffle": (
        (2, 12, 5, 7),
        lambda rng: {"split": np.array([0, 3, 4, 5, 7]), "joined": np.array([2, 12, 5, 7])},
        {"Transpose": {"perm": [0, 2, 1, 3, 4]}},
    ),
    "Gelu": ((2, 5, 17), lambda rng: {"root": np.array(2**0.5, np.float32)}, {}),
    "Gelu by Mul": ((2, 5, 17), lambda rng: {"root": np.array(0.5**0.5, np.float32)}, {}),
    "LayerNormalization": ((2, 5, 17), _layer_norm, {"ReduceMean": {"axes": [-1]}}),
    "RMSNormalization": (
        (2, 5, 17),
        lambda rng: {"epsilon": np.array(1e-3, np.float32), **_vectors(rng, 17, "scale")},
        {"ReduceMean": {"axes": [-1]}},
    ),
    **{name: ((2, 3, 5, 8), partial(_attention, name=name), {"keys": {"perm": [0, 1, 3, 2]}}) for name in EXPORTED},
    **{name: ((2, 5, 3, 8), partial(_attention, name=name), {"x": {"perm": [0, 2, 1, 3]}}) for name in OF_ONNX},
    "Gemm of rows": ((6, 8), partial(_rows, biased=False), {}),
    "Gemm of rows, biased": ((6, 8), partial(_rows, biased=True), {}),
    **{f"{depth} x LSTM": ((7, 2, 3), _stack(4, depth), {"LSTM": {"hidden_size": 5}}) for depth in (2, 3, 4)},
    **{
        f"{depth} x GRU": ((7, 2, 3), _stack(3, depth), {"GRU": {"hidden_size": 5, "linear_before_reset": 1}})
        for depth in (2, 3, 4)
    },
}
"""Rule -> shape of x, the constants that the other variables stand for, and attributes that the pattern leaves free; of
a variable: of a Transpose that it is read through.
"""

RULE_IDS = [f"{r.name}-{i}" for i, r in enumerate(RULES)]


def model_of_rule(rule: Rule, rng: np.random.Generator) -> onnx.ModelProto:
    """The rule's pattern over an input x, as an exporter before opset 18 would write it; with Attention, of opset
    23."""
    shape, constants_of, free = EXAMPLES[rule.name]
    constants: dict[str, Array] = constants_of(rng)
    root, variables = trace(rule.pattern)
    assert set(variables) == {"x", *constants}
    nodes: list[onnx.NodeProto] = []
    made: dict[int, str] = {}

    def name_of(argument: Variable | Call | float) -> str:
        if isinstance(argument, Variable):
            if argument.name not in free:
                return argument.name
            nodes.append(
                helper.make_node("Transpose", [argument.name], [f"{argument.name}.turned"], **free[argument.name])
            )
            return f"{argument.name}.turned"
        if not isinstance(argument, Call):
            name = f"c{len(constants)}"
            constants[name] = np.array(argument, np.float32)
            return name
        if id(argument) not in made:
            inputs = [name_of(a) for a in argument.arguments]
            made[id(argument)] = name = "y" if argument is root else f"v{len(nodes)}"
            nodes.append(
                helper.make_node(argument.op, inputs, [name], **{**free.get(argument.op, {}), **argument.attributes})
            )
        return made[id(argument)]

    name_of(root)
    graph = helper.make_graph(
        nodes,
        "pattern",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 23 if "Attention" in {n.op_type for n in nodes} else 17)],
        ir_version=10,
    )
