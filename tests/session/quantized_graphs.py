"""Quantized models of one to six nodes, in the forms that quantizers write: QDQ, QLinear*, integer products, packed
weights.

Each is a family of its own below: with random sizes, types, zero points, scales for all, for each channel or block, and
attributes. Activations are bytes that fill their range, so that a wrong zero point, order or padding moves most
elements by more than a rounding does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.session.fuzz_models import FuzzModel
from tests.session.random_graphs import Array

MICROSOFT = "com.microsoft"
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33, 64, 65)
KINDS: Mapping[str, int] = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "uint4": TensorProto.UINT4,
    "int4": TensorProto.INT4,
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}
LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "uint4": (0, 15), "int4": (-8, 7)}


class Quantized:
    """A model that grows: nodes, constants, and what each run is fed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.inputs: dict[str, tuple[str, list[int]]] = {}
        self.outputs: list[str] = []
        self.opset = self.pick((13, 17, 21, 21, 23))
        self.names = 0
        self.known: dict[str, Array] = {}
        self.step = 1e-9
        """Of float outputs: what a byte is worth."""
        self.scales: list[str] = []
        """Of what a product reads, and of its weight: what onnxruntime takes the scale of its bias for, whatever the
        file says."""

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def maybe(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def node(self, op: str, inputs: Sequence[str], domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op}_{self.names}", domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any, kind: str = "") -> str:
        name = self.name()
        made = (
            numpy_helper.from_array(np.asarray(array), name)
            if not kind.endswith("int4")
            else helper.make_tensor(name, KINDS[kind], np.shape(array), np.asarray(array).reshape(-1).tolist())
        )
        self.held.append(made)
        self.known[name] = np.asarray(array)
        return name

    def input(self, kind: str, shape: Sequence[int]) -> str:
        name = self.name()
        self.inputs[name] = (kind, list(shape))
        return name

    # ---- values

    def codes(self, kind: str, shape: Sequence[int]) -> Array:
        low, high = LIMITS[kind]
        return self.rng.integers(low, high + 1, shape).astype("uint8" if kind[0] == "u" else "int8")

    def scale(self, shape: Sequence[int] = ()) -> Array:
        return np.asarray(self.rng.uniform(0.004, 0.02, shape), "f")

    def zero(self, kind: str, shape: Sequence[int] = (), some: float = 0.6) -> Array:
        low, high = LIMITS[kind]
        middle, made = (low + high + 1) // 2, self.codes(kind, shape)
        return (made if self.maybe(some) else np.full(shape, middle)).astype(made.dtype)

    def quantized(self, x: str, scale: str, zero: str) -> str:
        found: str = self.node("QuantizeLinear", [x, scale, zero])
        return found

    def parameters(self, kind: str, scale: float | None = None) -> tuple[str, str]:
        """Of activations: the names of a scale and a zero point."""
        return self.constant(self.scale() if scale is None else np.float32(scale)), self.constant(
            self.zero(kind, (), 0.7)
        )

    def dequantized(self, x: str, pair: tuple[str, str]) -> str:
        found: str = self.node("DequantizeLinear", [x, *pair])
        return found

    # ---- the families

    def qdq(self) -> None:
        """Activations between QuantizeLinear and DequantizeLinear, through up to three operators."""
        kind = self.pick(("uint8", "uint8", "int8"))
        image = self.maybe(0.7)
        shape = [
            self.pick((1, 2, 3)),
            self.pick(SIZES),
            *([self.pick((3, 4, 7, 8, 9)), self.pick((3, 5, 8))] if image else []),
        ]
        x, pair = self.input("float32", shape), self.parameters(kind)
        x = self.dequantized(self.quantized(x, *pair), pair)
        for _ in range(int(self.rng.integers(1, 4))):
            self.scales = [pair[0]]
            x, shape, large = self._step(x, shape, image)
            if self.maybe(0.3):
                x = self.node(
                    *self.pick(
                        (("Relu", [x]), ("Clip", [x, self.constant(np.float32(0)), self.constant(np.float32(0.5))]))
                    )
                )
            if large or self.maybe(0.3):  # what only moves bytes keeps their scale
                pair = self.parameters(kind, large or None)
            last = self.quantized(x, *pair)
            x = self.dequantized(last, pair)
            image = len(shape) == 4
        self.outputs.append(last if self.maybe(0.7) else x)
        self.step = float(self.known[pair[0]])

    def _step(self, x: str, shape: list[int], image: bool) -> tuple[str, list[int], float]:
        """An operator: its result, shape, the scale that bytes of it may have (0: the one there is)."""
        if image:
            step = self.pick((self._conv, self._conv, self._conv, self._between, self._between, self._move, self._pool))
        else:
            step = self.pick((self._product, self._product, self._product, self._between, self._move))
        return step(x, shape)  # type: ignore[no-any-return]

    def weight(self, shape: Sequence[int], axis: int) -> str:
        """A weight with its decoder."""
        kind = self.pick(("int8", "int8", "uint8"))
        wide = [shape[axis]] if self.maybe() else []
        zero = np.zeros(wide, "i1") if kind == "int8" else self.zero(kind, wide)
        inputs = [self.constant(self.codes(kind, shape)), self.constant(self.scale(wide)), self.constant(zero)]
        self.scales.append(inputs[1])
        return str(self.node("DequantizeLinear", inputs, axis=axis))

    def bias(self, count: int) -> list[str]:
        if self.maybe(0.4):
            return []
        if self.maybe(0.3):
            return [self.constant(self.rng.normal(size=count).astype("f"))]
        scale = np.asarray(math.prod((self.known[name] for name in self.scales), start=np.float32(1)), "f")
        inputs = [self.constant(self.rng.integers(-9999, 9999, count).astype("i4")), self.constant(scale)]
        return [self.node("DequantizeLinear", inputs, axis=0)]

    def geometry(self, shape: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """Attributes of a window, and its size."""
        kernel = [min(self.pick((1, 1, 2, 3, 3)), d) for d in shape[2:]]
        strides = [self.pick((1, 1, 2)) for _ in kernel]
        pads = [int(self.rng.integers(0, k)) for k in (*kernel, *kernel)]
        return {"kernel_shape": kernel, "strides": strides, "pads": pads}, [
            (d + b + e - k) // s + 1
            for d, k, s, b, e in zip(shape[2:], kernel, strides, pads[:2], pads[2:], strict=True)
        ]

    def _conv(self, x: str, shape: list[int]) -> tuple[str, list[int], float]:
        attributes, sizes = self.geometry(shape)
        channels = shape[1]
        group = self.pick([g for g in (1, 1, 1, 2, 4, channels) if channels % g == 0])
        filters = group * self.pick((1, 2, 4, 5, 8)) if group > 1 else self.pick(SIZES)
        dims = (filters, channels // group, *attributes["kernel_shape"])
        w = self.weight(dims, 0)
        y = self.node("Conv", [x, w, *self.bias(filters)], group=group, **attributes)
        return y, [shape[0], filters, *sizes], 0.012 * math.sqrt(math.prod(dims[1:]))

    def _product(self, x: str, shape: list[int]) -> tuple[str, list[int], float]:
        k, n = shape[-1], self.pick(SIZES)
        large = 0.012 * math.sqrt(k)
        if len(shape) == 2 and self.maybe():
            turned = self.maybe()
            w = self.weight((n, k) if turned else (k, n), 0 if turned else 1)
            return self.node("Gemm", [x, w, *self.bias(n)], transB=int(turned)), [*shape[:-1], n], large
        y = self.node("MatMul", [x, self.weight((k, n), 1)])
        for b in self.bias(n):
            y = self.node("Add", [y, b])
        return y, [*shape[:-1], n], large

    def _between(self, x: str, shape: list[int]) -> tuple[str, list[int], float]:
        kind = self.pick(("uint8", "int8"))
        op = self.pick(("Add", "Mul", "Sub", "Concat", "Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Self"))
        if op == "Self":
            return self.node(self.pick(("Add", "Mul")), [x, x]), shape, 0.02
        if op in ("Add", "Mul", "Sub", "Concat"):
            other = (
                self.pick((shape, shape, [1, *shape[1:]], [*shape[:1], shape[1], *[1] * (len(shape) - 2)]))
                if op != "Concat"
                else shape
            )
            pair = self.parameters(kind)
            if self.maybe(0.7):
                second = self.dequantized(self.quantized(self.input("float32", other), *pair), pair)
            else:
                second = self.dequantized(self.constant(self.codes(kind, other)), pair)
            both = [x, second] if self.maybe(0.7) else [second, x]
            if op == "Concat":
                return self.node("Concat", both, axis=1), [shape[0], 2 * shape[1], *shape[2:]], 0.0
            return self.node(op, both), shape, 0.02
        return self.node(op, [x]), shape, 0.008

    def _move(self, x: str, shape: list[int]) -> tuple[str, list[int], float]:
        if len(shape) == 4:
            what = self.pick(("Flatten", "Transpose", "Reshape", "Slice"))
            if what == "Flatten":
                return self.node("Flatten", [x]), [shape[0], math.prod(shape[1:])], 0.0
            if what == "Transpose":
                perm = self.pick(([0, 1, 3, 2], [0, 2, 3, 1], [0, 3, 1, 2]))
                return self.node("Transpose", [x], perm=perm), [shape[p] for p in perm], 0.0
            if what == "Reshape":
                return (
                    self.node("Reshape", [x, self.constant(np.array([0, 0, -1]))]),
                    [shape[0], shape[1], shape[2] * shape[3]],
                    0.0,
                )
            at = [self.constant(np.array([v])) for v in (0, max(shape[1] // 2, 1), 1)]
            return self.node("Slice", [x, *at]), [shape[0], max(shape[1] // 2, 1), *shape[2:]], 0.0
        if len(shape) == 3:
            return self.node("Transpose", [x], perm=[0, 2, 1]), [shape[0], shape[2], shape[1]], 0.0
        return self.node("Unsqueeze", [x, self.constant(np.array([1]))]), [shape[0], 1, shape[1]], 0.0

    def _pool(self, x: str, shape: list[int]) -> tuple[str, list[int], float]:
        what = self.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean", "Resize"))
        if what == "GlobalAveragePool":
            return self.node(what, [x]), [*shape[:2], 1, 1], 0.004
        if what == "ReduceMean":
            axes = {"axes": [2, 3]} if self.opset < 18 else {}
            return (
                self.node(what, [x, *([] if axes else [self.constant(np.array([2, 3]))])], keepdims=1, **axes),
                [*shape[:2], 1, 1],
                0.004,
            )
        if what == "Resize":
            scales = self.constant(np.array([1, 1, 2, 2], "f"))
            mode = self.pick(("nearest", "linear"))
            return self.node(what, [x, "", scales], mode=mode), [*shape[:2], 2 * shape[2], 2 * shape[3]], 0.0
        attributes, sizes = self.geometry(shape)
        if what == "AveragePool" and self.maybe():
            attributes["count_include_pad"] = 1
        return self.node(what, [x], **attributes), [*shape[:2], *sizes], 0.0

    def qlinear_conv(self) -> None:
        kind = self.pick(("uint8", "int8"))
        shape = [
            self.pick((1, 2)),
            self.pick(SIZES),
            *(self.pick((3, 5, 8, 9)) for _ in range(self.pick((1, 2, 2, 2)))),
        ]
        group = self.pick([g for g in (1, 1, 2, shape[1]) if shape[1] % g == 0])
        filters = group * self.pick((1, 3, 4, 8))
        weights = self.pick(("int8", "int8", "uint8")) if kind == "uint8" else "int8"
        attributes, _ = self.geometry(shape) if len(shape) == 4 else ({"pads": [1, 1]} if self.maybe() else {}, [])
        if self.maybe(0.15) and "pads" in attributes:
            del attributes["pads"]
            attributes["auto_pad"] = self.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
        kernel = attributes.get("kernel_shape", [min(3, d) for d in shape[2:]])
        wide = [filters] if self.maybe() else []
        dims = (filters, shape[1] // group, *kernel)
        zero = np.zeros(wide, "i1") if weights == "int8" else np.full(wide, self.zero(weights), "u1")
        inputs = [
            self.input(kind, shape),
            *self.parameters(kind),
            self.constant(self.codes(weights, dims)),
            self.constant(self.scale(wide)),
            self.constant(zero),
            *self.parameters(kind, 0.01 * math.sqrt(math.prod(dims[1:]))),
        ]
        if self.maybe():
            inputs.append(self.constant(self.rng.integers(-20000, 20000, filters).astype("i4")))
        self.outputs.append(self.node("QLinearConv", inputs, group=group, **attributes))

    def qlinear_matmul(self) -> None:
        kind = self.pick(("uint8", "int8"))
        weights = self.pick(("int8", "uint8")) if kind == "uint8" else "int8"
        batch = self.pick(([], [], [2], [2, 3]))
        m, k, n = (self.pick(SIZES) for _ in range(3))
        wide = [n] if self.maybe(0.4) else []
        w_shape = [*(batch if self.maybe(0.3) and not wide else []), k, n]
        w = self.constant(self.codes(weights, w_shape)) if self.maybe(0.7) else self.input(weights, w_shape)
        zero = np.full(wide, 0 if weights == "int8" else int(self.zero(weights)), weights)
        inputs = [
            self.input(kind, [*batch, m, k]),
            *self.parameters(kind),
            w,
            self.constant(self.scale(wide)),
            self.constant(zero),
            *self.parameters(kind, 0.01 * math.sqrt(k)),
        ]
        self.outputs.append(self.node("QLinearMatMul", inputs))

    def matmul_integer(self) -> None:
        kind, weights = self.pick(("uint8", "int8")), self.pick(("uint8", "int8"))
        batch = self.pick(([], [], [2], [2, 3]))
        m, k, n = (self.pick(SIZES) for _ in range(3))
        w_shape = [*(batch if self.maybe(0.3) else []), k, n]
        w = self.constant(self.codes(weights, w_shape)) if self.maybe(0.7) else self.input(weights, w_shape)
        inputs = [self.input(kind, [*batch, m, k]), w]
        if self.maybe(0.7):
            inputs.append(self.constant(self.zero(kind)) if self.maybe(0.8) else "")
            if self.maybe(0.7):
                inputs.append(self.constant(self.zero(weights, [n] if self.maybe(0.3) and len(w_shape) == 2 else ())))
        self.outputs.append(self.node("MatMulInteger", inputs))

    def conv_integer(self) -> None:
        shape = [self.pick((1, 2)), self.pick(SIZES), self.pick((3, 5, 8)), self.pick((3, 6))]
        attributes, _ = self.geometry(shape)
        group = self.pick([g for g in (1, 1, 2, shape[1]) if shape[1] % g == 0])
        dims = (group * self.pick((1, 3, 4)), shape[1] // group, *attributes["kernel_shape"])
        inputs = [self.input("uint8", shape), self.constant(self.codes("uint8", dims))]
        if self.maybe(0.7):
            inputs += [
                self.constant(self.zero("uint8")),
                *([self.constant(self.zero("uint8"))] if self.maybe() else []),
            ]
        self.outputs.append(self.node("ConvInteger", inputs, group=group, **attributes))

    def dynamic(self) -> None:
        """As onnxruntime's quantize_dynamic writes a product."""
        m, k, n = (self.pick(SIZES) for _ in range(3))
        x = self.input("float32", [*self.pick(([], [2])), m, k])
        y, scale, zero = self.node("DynamicQuantizeLinear", [x], outputs=3)
        kind = self.pick(("uint8", "int8"))
        wide = [n] if self.maybe(0.3) else []
        w_zero = self.constant(np.zeros(wide, kind) if kind == "int8" else self.zero(kind, wide))
        w_scale = self.constant(self.scale(wide))
        product = self.node("MatMulInteger", [y, self.constant(self.codes(kind, [k, n])), zero, w_zero])
        result = self.node("Mul", [self.node("Cast", [product], to=1), self.node("Mul", [scale, w_scale])])
        if self.maybe():
            result = self.node("Add", [result, self.constant(self.rng.normal(size=n).astype("f"))])
        self.outputs.append(self.node("Relu", [result]) if self.maybe(0.3) else result)
        if self.maybe(0.2):
            self.outputs += [y, scale, zero]

    def contrib_product(self) -> None:
        """DynamicQuantizeMatMul, and MatMulIntegerToFloat."""
        m, k, n = (self.pick(SIZES) for _ in range(3))
        kind = self.pick(("uint8", "int8"))
        w, wide = self.constant(self.codes(kind, [k, n])), [n] if self.maybe(0.3) else []
        w_scale, w_zero = (
            self.constant(self.scale(wide)),
            self.constant(np.zeros(wide, kind) if kind == "int8" else self.zero(kind, wide)),
        )
        bias = [self.constant(self.rng.normal(size=n).astype("f"))] if self.maybe() else []
        if self.maybe():
            inputs = [self.input("float32", [m, k]), w, w_scale, w_zero, *bias]
            self.outputs.append(self.node("DynamicQuantizeMatMul", inputs, MICROSOFT))
        else:
            inputs = [
                self.input("uint8", [m, k]),
                w,
                self.constant(self.scale()),
                w_scale,
                self.constant(self.zero("uint8")),
                w_zero,
                *bias,
            ]
            self.outputs.append(self.node("MatMulIntegerToFloat", inputs, MICROSOFT))

    def nbits(self) -> None:
        bits, block = self.pick((2, 4, 4, 4, 8)), self.pick((16, 32, 64, 128))
        k, n = self.pick((*SIZES, 48, 100, 130, 257)), self.pick(SIZES)
        blocks = -(-k // block)
        inputs = [
            self.input("float32", [*self.pick(([], [2])), self.pick((1, 1, 2, 4, 5, 9)), k]),
            self.constant(self.rng.integers(0, 256, (n, blocks, block * bits // 8)).astype("u1")),
            self.constant(self.scale([n, blocks])),
        ]
        inputs[2] = inputs[2] if self.maybe() else self.constant(self.scale([n * blocks]))
        zeros = self.pick(("", "codes", "floats" if bits < 8 else "codes"))
        if zeros == "codes":
            inputs.append(self.constant(self.rng.integers(0, 256, n * (-(-blocks * bits // 8))).astype("u1")))
        elif zeros == "floats":
            inputs.append(self.constant(self.rng.uniform(0, 1 << bits, (n, blocks)).astype("f")))
        if self.maybe(0.4):
            inputs += [""] * (5 - len(inputs)) + [self.constant(self.rng.normal(size=n).astype("f"))]
        y = self.node("MatMulNBits", inputs, MICROSOFT, K=k, N=n, bits=bits, block_size=block, accuracy_level=1)
        self.outputs.append(self.node("Relu", [y]) if self.maybe(0.3) else y)

    def gather_blocks(self) -> None:
        kind = self.pick(("uint8", "uint8", "uint4", "int4"))
        bits = self.pick((4, 8)) if kind == "uint8" else 4
        block, rows, k = self.pick((16, 32, 64)), self.pick(SIZES), 2 * self.pick((*SIZES, 48, 100))
        blocks = -(-k // block)
        packed = k * bits // 8 if kind == "uint8" else k
        inputs = [self.constant(self.codes(kind, [rows, packed]), kind)]
        indices = self.pick(([], [3], [2, 5], [1, 1, 4]))
        ids = self.rng.integers(-rows if self.maybe(0.3) else 0, rows, indices).astype(self.pick(("i4", "i8")))
        inputs += [self.constant(ids), self.constant(self.scale([rows, blocks]))]
        if self.maybe():
            zero_shape = [rows, -(-blocks * bits // 8) if kind == "uint8" else blocks]
            inputs.append(self.constant(self.codes(kind, zero_shape), kind))
        attributes = {"bits": bits} if kind == "uint8" else {}
        y = self.node(
            "GatherBlockQuantized", inputs, MICROSOFT, gather_axis=0, quantize_axis=1, block_size=block, **attributes
        )
        x = self.input("float32", [*indices, k])
        self.outputs.append(self.node("Add", [x, y]))

    def packed_weight(self) -> None:
        """DequantizeLinear of constants before each operator that reads weights."""
        op = self.pick(("MatMul", "MatMul", "Gemm", "Conv", "ConvTranspose", "Gather", "Einsum", "MatMulLeft"))
        kinds = ("int8", "uint8", "int4", "uint4") if self.opset >= 21 else ("int8", "uint8")
        kind, k, n = self.pick(kinds), self.pick((*SIZES, 96, 128)), self.pick(SIZES)
        spatial = [self.pick((1, 3)), self.pick((1, 2, 3))]
        turned = self.maybe()
        shape = {
            "Gemm": [n, k] if turned else [k, n],
            "Conv": [n, k, *spatial],
            "ConvTranspose": [k, n, *spatial],
            "Gather": [k, n],
        }.get(op, [k, n])
        axis, block = int(self.rng.integers(len(shape))), self.pick((0, 0, 16, 32)) if self.opset >= 21 else 0
        if block and shape[axis] % block == 0:
            scales = [d // block if i == axis else d for i, d in enumerate(shape)]
            attributes = {"axis": axis, "block_size": block}
        else:
            scales, attributes = ([shape[axis]], {"axis": axis}) if self.maybe(0.7) else ([], {})
        inputs = [self.constant(self.codes(kind, shape), kind), self.constant(self.scale(scales))]
        if self.maybe(0.6):
            inputs.append(self.constant(self.zero(kind, scales), kind))
        w = self.node("DequantizeLinear", inputs, **attributes)
        self.scales = [self.constant(np.float32(1e-4))]
        rows = self.pick((1, 1, 2, 4, 5, 20))
        if op == "Gemm":
            y = self.node(
                "Gemm",
                [self.input("float32", [rows, k]), w, *self.bias(n)],
                transB=int(turned),
                alpha=self.pick((1.0, 0.5)),
                beta=self.pick((1.0, 2.0)),
            )
        elif op in ("Conv", "ConvTranspose"):
            y = self.node(
                op,
                [self.input("float32", [self.pick((1, 2)), k, 5, 6]), w],
                strides=[self.pick((1, 2)), 1],
                pads=[0, 0, 0, 0],
            )
        elif op == "Gather":
            y = self.node("Gather", [w, self.input("int64", [rows])], axis=0)
        elif op == "Einsum":
            y = self.node("Einsum", [self.input("float32", [2, rows, k]), w], equation="bij,jk->bik")
        elif op == "MatMulLeft":
            y = self.node("MatMul", [w, self.input("float32", [n, rows])])
        else:
            y = self.node("MatMul", [self.input("float32", [*self.pick(([], [2])), rows, k]), w])
        self.outputs.append(y)

    def contrib_elementwise(self) -> None:
        kind = self.pick(("uint8", "int8"))
        shape = [self.pick((1, 2)), self.pick(SIZES), self.pick((3, 4, 7)), self.pick((1, 4, 5))]
        x, result = self.input(kind, shape), self.parameters(kind, 0.02)
        op = self.pick(
            (
                "QLinearAdd",
                "QLinearMul",
                "QLinearConcat",
                "QLinearAveragePool",
                "QLinearGlobalAveragePool",
                "QLinearSigmoid",
                "QLinearLeakyRelu",
            )
        )
        if op in ("QLinearAdd", "QLinearMul"):
            other = self.pick((shape, [1, *shape[1:]], [1, shape[1], 1, 1], shape[1:], []))
            second = self.input(kind, other) if self.maybe() else self.constant(self.codes(kind, other))
            y = self.node(op, [x, *self.parameters(kind), second, *self.parameters(kind), *result], MICROSOFT)
        elif op == "QLinearConcat":
            y = self.node(
                op,
                [*result, x, *self.parameters(kind), self.input(kind, shape), *self.parameters(kind)],
                MICROSOFT,
                axis=self.pick((1, -1, 2)),
            )
        elif op == "QLinearAveragePool":
            attributes, _ = self.geometry(shape)
            y = self.node(
                op, [x, *self.parameters(kind), *result], MICROSOFT, count_include_pad=int(self.maybe()), **attributes
            )
        else:
            attributes = {"channels_last": 0} if "Pool" in op else {"alpha": 0.1} if "Leaky" in op else {}
            y = self.node(op, [x, *self.parameters(kind), *result], MICROSOFT, **attributes)
        self.outputs.append(y)

    def alone(self) -> None:
        """QuantizeLinear and DequantizeLinear with an axis."""
        shape = [self.pick(SIZES) for _ in range(int(self.rng.integers(1, 4)))]
        axis = int(self.rng.integers(len(shape)))
        kind, wide = self.pick(("uint8", "int8")), [shape[axis]] if self.maybe() else []
        pair = [self.constant(self.scale(wide)), *([self.constant(self.zero(kind, wide))] if self.maybe(0.8) else [])]
        if self.maybe():
            self.outputs.append(self.node("QuantizeLinear", [self.input("float32", shape), *pair], axis=axis))
        else:
            x = self.input(kind if len(pair) > 1 else "uint8", shape)
            self.outputs.append(self.node("DequantizeLinear", [x, *pair], axis=axis))

    # ---- the model

    def feeds(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
        made = {}
        for name, (kind, _) in self.inputs.items():
            shape = shapes[name]
            if kind == "int64":
                made[name] = np.zeros(shape, "i8")
            else:
                made[name] = (
                    self.rng.uniform(-1.2, 1.2, shape).astype("f") if kind == "float32" else self.codes(kind, shape)
                )
        return made

    def model(self, opened: str) -> bytes:
        """opened: an input whose first size is left open."""
        infos = []
        for name, (kind, shape) in self.inputs.items():
            infos.append(
                helper.make_tensor_value_info(
                    name, KINDS[kind], ["n", *shape[1:]] if name == opened and shape else shape
                )
            )
        graph = helper.make_graph(
            self.nodes, "quantized", infos, [helper.make_empty_tensor_value_info(o) for o in self.outputs], self.held
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


FAMILIES: Mapping[Callable[[Quantized], None], float] = {
    Quantized.qdq: 8,
    Quantized.qlinear_conv: 3,
    Quantized.qlinear_matmul: 2,
    Quantized.matmul_integer: 2,
    Quantized.conv_integer: 1,
    Quantized.dynamic: 2,
    Quantized.contrib_product: 1,
    Quantized.nbits: 4,
    Quantized.gather_blocks: 2,
    Quantized.packed_weight: 5,
    Quantized.contrib_elementwise: 3,
    Quantized.alone: 1,
}
"""And how often each, beside the others."""


def quantized_model(seed: int) -> FuzzModel:
    """The model of a seed: the same one with the same version of numpy."""
    made = Quantized(seed)
    weights = np.array(list(FAMILIES.values()), "d")
    family = list(FAMILIES)[int(made.rng.choice(len(weights), p=weights / weights.sum()))]
    family(made)
    shapes = {name: shape for name, (_, shape) in made.inputs.items()}
    only = next(iter(shapes), "")
    opened = only if len(shapes) == 1 and shapes[only] and made.maybe(0.4) else ""
    runs = [made.feeds(shapes) for _ in range(2)]
    if opened:
        runs.append(made.feeds({only: [made.pick((1, 2, 3, 5)), *shapes[only][1:]]}))
    return FuzzModel(
        made.model(opened), runs, family.__name__, (f"open {opened}",) if opened else (), "normal", made.step
    )
