"""Networks for phones, of depthwise and grouped convolutions: MobileNet-V1, MobileNet-V2, ShuffleNet."""

from __future__ import annotations

import onnx

from models.builder import Dim, Net, Value
from ort_gpu_ep.errors import ModelError

# width and stride of the pointwise layers: table 1 of the MobileNet-V1 paper
_MOBILENET_V1 = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]

# expansion, width, repeats, first stride: table 2 of the MobileNet-V2 paper
_MOBILENET_V2 = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]

# width of stage 2 by number of groups; stages 3 and 4 double it: table 1 of the ShuffleNet paper
_SHUFFLENET = {1: 144, 2: 200, 3: 240, 4: 272, 8: 384}


def mobilenet_v1(*, batch: Dim = 1, size: int = 224, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """MobileNet-V1: depthwise 3x3 and pointwise convolutions, each with BatchNormalization and ReLU6.

    image: [batch, 3, size, size] -> probabilities: [batch, classes]

    Source: Howard et al., MobileNets, 2017, arXiv:1704.04861; ReLU6 as in its authors' release.
    """
    net = Net("mobilenet_v1", seed)
    x = net.relu6(net.conv_bn(net.input("image", [batch, 3, size, size]), 32, 3, stride=2, pad=1))
    for index, (width, stride) in enumerate(_MOBILENET_V1):
        with net.scope(f"block{index}"):
            x = net.relu6(net.conv_bn(x, x.channels, 3, stride=stride, pad=1, group=x.channels))
            x = net.relu6(net.conv_bn(x, width, 1))
    return net.softmax_output(net.gemm(net.global_pool(x), classes, gain=1.5), batch)


def mobilenet_v2(*, batch: Dim = 1, size: int = 224, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """MobileNet-V2: inverted residuals with linear bottlenecks.

    image: [batch, 3, size, size] -> probabilities: [batch, classes]

    Source: Sandler et al., MobileNetV2, 2018, arXiv:1801.04381, table 2.
    """
    net = Net("mobilenet_v2", seed)
    x = net.relu6(net.conv_bn(net.input("image", [batch, 3, size, size]), 32, 3, stride=2, pad=1))
    for stage, (expansion, width, repeats, first) in enumerate(_MOBILENET_V2):
        for block in range(repeats):
            with net.scope(f"block{stage}.{block}"):
                x = _inverted_residual(net, x, width, expansion, first if block == 0 else 1)
    x = net.relu6(net.conv_bn(x, 1280, 1))
    return net.softmax_output(net.gemm(net.global_pool(x), classes), batch)


def _inverted_residual(net: Net, x: Value, width: int, expansion: int, stride: int) -> Value:
    y = x
    if expansion > 1:
        y = net.relu6(net.conv_bn(y, x.channels * expansion, 1))
    y = net.relu6(net.conv_bn(y, y.channels, 3, stride=stride, pad=1, group=y.channels))
    if stride == 1 and x.channels == width:
        return net.add(x, net.conv_bn(y, width, 1, gain=0.35))
    return net.conv_bn(y, width, 1, gain=0.7)


def shufflenet(
    *, batch: Dim = 1, size: int = 224, classes: int = 1000, groups: int = 3, seed: int = 0
) -> onnx.ModelProto:
    """ShuffleNet (V1, 1x): grouped 1x1 convolutions whose channels a Reshape, Transpose, Reshape mixes.

    image: [batch, 3, size, size] -> probabilities: [batch, classes]

    Raises:
        ModelError: the paper gives no widths for this number of groups.

    Source: Zhang et al., ShuffleNet, 2017, arXiv:1707.01083, table 1.
    """
    if groups not in _SHUFFLENET:
        raise ModelError(f"shufflenet: groups: got {groups}, expected one of {sorted(_SHUFFLENET)}")
    net = Net("shufflenet", seed)
    x = net.relu(net.conv_bn(net.input("image", [batch, 3, size, size]), 24, 3, stride=2, pad=1))
    x = net.max_pool(x, 3, 2, pad=1)
    side = -(-size // 4)
    for stage, units in ((2, 4), (3, 8), (4, 4)):
        width = _SHUFFLENET[groups] << (stage - 2)
        for unit in range(units):
            with net.scope(f"stage{stage}.{unit}"):
                if unit == 0:
                    # the paper groups no pointwise convolution over the stem's 24 channels
                    x = _strided_unit(net, x, width, 1 if stage == 2 else groups, groups, side)
                    side = -(-side // 2)
                else:
                    x = _residual_unit(net, x, groups, side)
    return net.softmax_output(net.gemm(net.global_pool(x), classes, gain=0.3), batch)


def _residual_unit(net: Net, x: Value, groups: int, side: int) -> Value:
    bottleneck = x.channels // 4
    y = _shuffle(net, net.relu(net.conv_bn(x, bottleneck, 1, group=groups)), groups, side)
    y = net.conv_bn(y, bottleneck, 3, pad=1, group=bottleneck, gain=0.7)
    return net.relu(net.add(x, net.conv_bn(y, x.channels, 1, group=groups, gain=0.5)))


def _strided_unit(net: Net, x: Value, width: int, first_groups: int, groups: int, side: int) -> Value:
    bottleneck = width // 4
    y = _shuffle(net, net.relu(net.conv_bn(x, bottleneck, 1, group=first_groups)), groups, side)
    y = net.conv_bn(y, bottleneck, 3, stride=2, pad=1, group=bottleneck, gain=0.7)
    y = net.conv_bn(y, width - x.channels, 1, group=groups, gain=0.7)
    return net.relu(net.concat(net.average_pool(x, 3, 2, pad=1), y))


def _shuffle(net: Net, x: Value, groups: int, side: int) -> Value:
    """Channels [groups, n] -> [n, groups] over maps of side x side."""
    y = net.reshape(x, 0, groups, x.channels // groups, side, side)
    return net.reshape(net.transpose(y, 0, 2, 1, 3, 4), 0, x.channels, side, side)
