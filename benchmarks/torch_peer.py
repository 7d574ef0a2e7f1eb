"""Models of models/ in torch, training steps and forward passes: what ours are compared with, in losses and in time.

torch is imported by who has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import onnx
from onnx import helper, numpy_helper


class TorchStep:
    """A model's training step: cross-entropy of what is before a last Softmax, SGD or Adam.

    make: from parameters to an optimizer of torch. trainable: patterns of initializers' names, None for all but running
    statistics.
    """

    def __init__(
        self,
        torch: Any,
        model: onnx.ModelProto,
        make: Callable[[list[Any]], Any],
        *,
        dtype: Any,
        device: str = "cpu",
        trainable: Sequence[str] | None = None,
    ) -> None:
        self.torch, self.model, self.dtype, self.device = torch, model, dtype, device
        self._values, self._layers, self._ops = dict[str, Any](), dict[str, Any](), _ops(torch)
        self._nodes = [(n, {a.name: helper.get_attribute_value(a) for a in n.attribute}) for n in model.graph.node]
        for t in model.graph.initializer:
            self._values[t.name] = self._tensor(numpy_helper.to_array(t))
        for node, attributes in self._nodes:
            if node.op_type == "Constant":
                self._values[node.output[0]] = self._tensor(numpy_helper.to_array(attributes["value"]), "cpu")
            elif node.op_type == "LSTM":
                self._layers[node.output[0]] = self._lstm(node)
        self._update = make(self._parameters(trainable))

    def _tensor(self, array: Any, device: str | None = None) -> Any:
        found = self.torch.tensor(array)
        return (found.to(self.dtype) if found.is_floating_point() else found).to(device or self.device)

    def _parameters(self, trainable: Sequence[str] | None) -> list[Any]:
        found = [p for layer in self._layers.values() for p in layer.parameters()]
        inner = {name for node, _ in self._nodes if node.op_type == "LSTM" for name in node.input[1:4]}
        for t in self.model.graph.initializer:
            wanted = "running" not in t.name if trainable is None else any(fnmatchcase(t.name, p) for p in trainable)
            if wanted and t.name not in inner and self._values[t.name].is_floating_point():
                found.append(self._values[t.name].requires_grad_())
        return found

    def _lstm(self, node: onnx.NodeProto) -> Any:
        """torch's own layer: ONNX's gates are i, o, f, c, torch's i, f, c, o."""
        torch = self.torch
        w, r, b = (self._values[n][0] for n in node.input[1:4])
        hidden = r.shape[1]
        layer = torch.nn.LSTM(w.shape[1], hidden).to(self.dtype).to(self.device)
        for own, given in zip(layer.parameters(), (w, r, b[: 4 * hidden], b[4 * hidden :]), strict=True):
            i, o, f, c = given.detach().split(hidden)
            own.data.copy_(torch.cat([i, f, c, o]))
        return layer

    def forward(self, x: Any) -> Any:
        values = {**self._values, self.model.graph.input[0].name: x}
        for node, attributes in self._nodes:
            if node.op_type == "LSTM":
                values[node.output[0]] = self._layers[node.output[0]](values[node.input[0]])[0][:, None]
            elif node.op_type != "Constant":
                values[node.output[0]] = self._ops[node.op_type](attributes, *(values[n] for n in node.input if n))
        return values[self.model.graph.output[0].name]

    def batch(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Arrays as tensors on the device."""
        return self._tensor(x), self._tensor(y)

    def step(self, x: Any, y: Any) -> Any:
        """One step on tensors; the loss, a tensor that nobody has waited for."""
        loss = self.torch.nn.functional.cross_entropy(self.forward(x), y)
        self._update.zero_grad()
        loss.backward()
        self._update.step()
        return loss.detach()


class Forward(TorchStep):
    """A model's forward pass. tf32: products of float32 may use TF32."""

    def __init__(self, torch: Any, model: onnx.ModelProto, dtype: Any, tf32: bool, device: str = "cuda") -> None:
        super().__init__(torch, model, lambda parameters: None, dtype=dtype, device=device, trainable=())
        self._ops = self._ops | _forward_ops(torch)
        self._tf32 = tf32
        for name, value in self._values.items():
            if value.dim() == 4:
                self._values[name] = value.contiguous(memory_format=torch.channels_last)

    def __call__(self, x: Any) -> Any:
        self.torch.backends.cuda.matmul.allow_tf32 = self.torch.backends.cudnn.allow_tf32 = self._tf32
        with self.torch.inference_mode():
            return self.forward(x)

    def captured(self, x: Any) -> Callable[[], Any]:
        """A call that copies the array in, replays the pass as a CUDA graph, and copies the result out."""
        torch = self.torch
        given = self._tensor(x)
        given = given.contiguous(memory_format=torch.channels_last) if given.dim() == 4 else given
        torch.backends.cudnn.benchmark = True
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self(given)
        torch.cuda.current_stream().wait_stream(stream)
        graph, host = torch.cuda.CUDAGraph(), torch.from_numpy(x).pin_memory()
        with torch.cuda.graph(graph):
            result = self(given)

        def run() -> Any:
            given.copy_(host, non_blocking=True)
            graph.replay()
            return result.float().cpu().numpy()

        run.model = self  # type: ignore[attr-defined]  # whose weights the graph reads
        return run


def _forward_ops(torch: Any) -> dict[str, Callable[..., Any]]:
    """What a forward pass has besides, or otherwise."""
    f = torch.nn.functional
    return {
        "MaxPool": lambda a, x: f.max_pool2d(x, a["kernel_shape"], a["strides"], a["pads"][:2]),
        "Softmax": lambda a, x: torch.softmax(x, a.get("axis", -1)),
        "MatMul": lambda a, x, y: x @ y,
        "Div": lambda a, x, y: x / y,
        "Mul": lambda a, x, y: x * y,
        "Erf": lambda a, x: torch.erf(x),
        "Reshape": lambda a, x, shape: x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())]),
        "LayerNormalization": lambda a, x, s, b: f.layer_norm(x, x.shape[-1:], s, b, a.get("epsilon", 1e-5)),
    }


def _ops(torch: Any) -> dict[str, Callable[..., Any]]:
    """Ops as functions of their attributes and inputs."""
    f = torch.nn.functional
    return {
        "Gemm": lambda a, x, w, b: x @ (w.T if a.get("transB") else w) + b,
        "Relu": lambda a, x: f.relu(x),
        "Tanh": lambda a, x: torch.tanh(x),
        "Add": lambda a, x, y: x + y,
        "Clip": lambda a, x, low, high: torch.clamp(x, float(low), float(high)),
        "Conv": lambda a, x, w, b=None: f.conv2d(x, w, b, a["strides"], a["pads"][:2], a["dilations"], a["group"]),
        "BatchNormalization": lambda a, x, s, b, m, v: f.batch_norm(x, m, v, s, b, False, 0.0, a.get("epsilon", 1e-5)),
        "AveragePool": lambda a, x: f.avg_pool2d(x, a["kernel_shape"], a["strides"]),
        "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True),
        "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
        "Transpose": lambda a, x: x.permute(a["perm"]),
        "Squeeze": lambda a, x, axes: x.squeeze(int(axes[0])),
        "Gather": lambda a, x, i: x.select(a["axis"], int(i) % x.shape[a["axis"]]),
        "Softmax": lambda a, x: x,  # part of the loss
    }
