"""Plain chains of convolutions: LeNet-5, AlexNet, SqueezeNet, and multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from models.builder import Dim, Net, Value


def lenet5(*, batch: Dim = 1, classes: int = 10, seed: int = 0) -> onnx.ModelProto:
    """LeNet-5 with full connections between its maps: two tanh convolutions with average pooling, three dense layers.

    image: [batch, 1, 32, 32] -> probabilities: [batch, classes]

    Source: LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.
    """
    net = Net("lenet5", seed)
    x = net.input("image", [batch, 1, 32, 32])
    for maps in (6, 16):
        x = net.average_pool(net.op("Tanh", net.conv(x, maps, 5, gain=0.8)), 2, 2)
    x = net.flatten(x, 5 * 5)
    for width in (120, 84):
        x = net.op("Tanh", net.gemm(x, width))
    return net.softmax_output(net.gemm(x, classes, gain=1.5), batch)


def alexnet(*, batch: Dim = 1, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """AlexNet in its one-column form, as torchvision has it (without local response normalization).

    image: [batch, 3, 224, 224] -> probabilities: [batch, classes]

    Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014, arXiv:1404.5997.
    """
    net = Net("alexnet", seed)
    x = net.input("image", [batch, 3, 224, 224])
    with net.scope("features"):
        x = net.max_pool(net.relu(net.conv(x, 64, 11, stride=4, pad=2)), 3, 2)
        x = net.max_pool(net.relu(net.conv(x, 192, 5, pad=2, gain=0.7)), 3, 2)
        for maps in (384, 256, 256):
            x = net.relu(net.conv(x, maps, 3, pad=1))
        x = net.max_pool(x, 3, 2)
    with net.scope("classifier"):
        x = net.flatten(x, 6 * 6)
        for _ in range(2):
            x = net.relu(net.gemm(x, 4096, gain=0.8))
        return net.softmax_output(net.gemm(x, classes, gain=0.6), batch)


def _fire(net: Net, x: Value, squeeze: int, expand: int) -> Value:
    squeezed = net.relu(net.conv(x, squeeze, 1))
    return net.concat(net.relu(net.conv(squeezed, expand, 1)), net.relu(net.conv(squeezed, expand, 3, pad=1)))


def _squeezenet(
    name: str, stem: tuple[int, int], pool_before: Sequence[int], batch: Dim, size: int, classes: int, seed: int
) -> onnx.ModelProto:
    """Either SqueezeNet: `stem` is the first layer's width and kernel, `pool_before` the fire modules after a pool."""
    net = Net(name, seed)
    x = net.input("image", [batch, 3, size, size])
    width, kernel = stem
    x = net.relu(net.conv(x, width, kernel, stride=2))
    for index, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), start=2):
        if index in pool_before:
            x = net.max_pool(x, 3, 2, ceil=True)
        with net.scope(f"fire{index}"):
            x = _fire(net, x, squeeze, squeeze * 4)
    with net.scope("classifier"):
        x = net.relu(net.conv(x, classes, 1, gain=0.5))
        return net.softmax_output(net.global_pool(x), batch)


def squeezenet1_0(*, batch: Dim = 1, size: int = 224, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """SqueezeNet 1.0: a 7x7 stem, fire modules of a 1x1 squeeze and two parallel expansions, no dense layer.

    image: [batch, 3, size, size] -> probabilities: [batch, classes]

    Source: Iandola et al., SqueezeNet, 2016, arXiv:1602.07360, table 1.
    """
    return _squeezenet("squeezenet1_0", (96, 7), (2, 5, 9), batch, size, classes, seed)


def squeezenet1_1(*, batch: Dim = 1, size: int = 224, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """SqueezeNet 1.1: 1.0 with a 3x3 stem and earlier pooling, 2.4 times less arithmetic.

    image: [batch, 3, size, size] -> probabilities: [batch, classes]

    Source: Iandola et al., SqueezeNet, 2016, arXiv:1602.07360, and the v1.1 of its authors' repository.
    """
    return _squeezenet("squeezenet1_1", (64, 3), (2, 4, 6), batch, size, classes, seed)


def mlp(widths: Sequence[int], *, batch: Dim = 1, seed: int = 0) -> onnx.ModelProto:
    """A multi-layer perceptron: Gemm and Relu for every pair of neighbouring widths.

    x: [batch, widths[0]] -> y: [batch, widths[-1]]

    Source: Rumelhart et al., Learning representations by back-propagating errors, 1986.
    """
    net = Net("mlp_" + "x".join(map(str, widths)), seed)
    x = net.input("x", [batch, widths[0]])
    for width in widths[1:]:
        x = net.relu(net.gemm(x, width))
    net.output("y", x, [batch, widths[-1]])
    return net.model()
