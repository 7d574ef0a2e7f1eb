"""Networks of parallel branches: GoogLeNet (Inception-V1) and Inception-V3."""

from __future__ import annotations

import onnx

from models.builder import Dim, Net, Value

# 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection: table 1 of the GoogLeNet paper
_GOOGLENET = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(*, batch: Dim = 1, size: int = 224, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """GoogLeNet (Inception-V1) with local response normalization and without the auxiliary classifiers.

    image: [batch, 3, size, size] -> probabilities: [batch, classes]

    Source: Szegedy et al., Going Deeper with Convolutions, 2014, arXiv:1409.4842, table 1.
    """
    net = Net("googlenet", seed)
    x = net.input("image", [batch, 3, size, size])
    with net.scope("stem"):
        x = net.max_pool(net.relu(net.conv(x, 64, 7, stride=2, pad=3)), 3, 2, ceil=True)
        x = _response_norm(net, x)
        x = net.relu(net.conv(x, 64, 1, gain=0.7))
        x = net.relu(net.conv(x, 192, 3, pad=1))
        x = net.max_pool(_response_norm(net, x), 3, 2, ceil=True)
    for name, widths in _GOOGLENET.items():
        if name in ("4a", "5a"):
            x = net.max_pool(x, 3, 2, ceil=True)
        with net.scope(f"inception{name}"):
            x = _inception_v1(net, x, widths)
    with net.scope("classifier"):
        return net.softmax_output(net.gemm(net.global_pool(x), classes), batch)


def _response_norm(net: Net, x: Value) -> Value:
    return net.op("LRN", x, size=5, alpha=1e-4, beta=0.75, bias=1.0)


def _inception_v1(net: Net, x: Value, widths: tuple[int, ...]) -> Value:
    one, reduce3, three, reduce5, five, project = widths
    return net.concat(
        net.relu(net.conv(x, one, 1)),
        net.relu(net.conv(net.relu(net.conv(x, reduce3, 1)), three, 3, pad=1)),
        net.relu(net.conv(net.relu(net.conv(x, reduce5, 1)), five, 5, pad=2)),
        net.relu(net.conv(net.max_pool(x, 3, 1, pad=1), project, 1, gain=0.6)),
    )


def inception_v3(*, batch: Dim = 1, size: int = 299, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """Inception-V3 with factorized 7x1 and 3x1 convolutions, without the auxiliary classifier.

    image: [batch, 3, size, size] -> probabilities: [batch, classes]

    Source: Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2015, arXiv:1512.00567;
    widths as in its authors' release, which torchvision follows.
    """
    net = Net("inception_v3", seed)
    x = net.input("image", [batch, 3, size, size])
    with net.scope("stem"):
        x = _unit(net, x, 32, 3, stride=2)
        x = _unit(net, x, 32, 3)
        x = net.max_pool(_unit(net, x, 64, 3, pad=1), 3, 2)
        x = _unit(net, x, 80, 1)
        x = net.max_pool(_unit(net, x, 192, 3), 3, 2)
    for name, project in (("5b", 32), ("5c", 64), ("5d", 64)):
        with net.scope(f"mixed{name}"):
            x = _mixed_a(net, x, project)
    with net.scope("mixed6a"):
        x = _reduce_b(net, x)
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        with net.scope(f"mixed{name}"):
            x = _mixed_c(net, x, width)
    with net.scope("mixed7a"):
        x = _reduce_d(net, x)
    for name in ("7b", "7c"):
        with net.scope(f"mixed{name}"):
            x = _mixed_e(net, x)
    with net.scope("classifier"):
        return net.softmax_output(net.gemm(net.global_pool(x), classes), batch)


def _unit(
    net: Net, x: Value, out: int, kernel: int | tuple[int, int], *, stride: int = 1, pad: int | tuple[int, int] = 0
) -> Value:
    return net.relu(net.conv_bn(x, out, kernel, stride=stride, pad=pad, epsilon=1e-3))


def _pooled(net: Net, x: Value, out: int) -> Value:
    return _unit(net, net.average_pool(x, 3, 1, pad=1), out, 1)


def _mixed_a(net: Net, x: Value, project: int) -> Value:
    """35 x 35: 1x1, 5x5, double 3x3 and pooled branches."""
    five = _unit(net, _unit(net, x, 48, 1), 64, 5, pad=2)
    double = _unit(net, _unit(net, _unit(net, x, 64, 1), 96, 3, pad=1), 96, 3, pad=1)
    return net.concat(_unit(net, x, 64, 1), five, double, _pooled(net, x, project))


def _reduce_b(net: Net, x: Value) -> Value:
    """35 x 35 -> 17 x 17."""
    double = _unit(net, _unit(net, _unit(net, x, 64, 1), 96, 3, pad=1), 96, 3, stride=2)
    return net.concat(_unit(net, x, 384, 3, stride=2), double, net.max_pool(x, 3, 2))


def _row(net: Net, x: Value, out: int, length: int) -> Value:
    """A 1 x length convolution that keeps the size."""
    return _unit(net, x, out, (1, length), pad=(0, length // 2))


def _column(net: Net, x: Value, out: int, length: int) -> Value:
    """A length x 1 convolution that keeps the size."""
    return _unit(net, x, out, (length, 1), pad=(length // 2, 0))


def _mixed_c(net: Net, x: Value, width: int) -> Value:
    """17 x 17: 1x1, factorized 7x7, double factorized 7x7 and pooled branches."""
    seven = _column(net, _row(net, _unit(net, x, width, 1), width, 7), 192, 7)
    double = _row(net, _column(net, _unit(net, x, width, 1), width, 7), width, 7)
    double = _row(net, _column(net, double, width, 7), 192, 7)
    return net.concat(_unit(net, x, 192, 1), seven, double, _pooled(net, x, 192))


def _reduce_d(net: Net, x: Value) -> Value:
    """17 x 17 -> 8 x 8."""
    three = _unit(net, _unit(net, x, 192, 1), 320, 3, stride=2)
    seven = _column(net, _row(net, _unit(net, x, 192, 1), 192, 7), 192, 7)
    return net.concat(three, _unit(net, seven, 192, 3, stride=2), net.max_pool(x, 3, 2))


def _mixed_e(net: Net, x: Value) -> Value:
    """8 x 8: branches that end in a 1x3 next to a 3x1."""
    three = _unit(net, x, 384, 1)
    double = _unit(net, _unit(net, x, 448, 1), 384, 3, pad=1)
    return net.concat(
        _unit(net, x, 320, 1),
        net.concat(_row(net, three, 384, 3), _column(net, three, 384, 3)),
        net.concat(_row(net, double, 384, 3), _column(net, double, 384, 3)),
        _pooled(net, x, 192),
    )
