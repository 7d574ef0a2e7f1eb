"""Residual networks: ResNet-50."""

from __future__ import annotations

import onnx

from models.builder import Dim, Net, Value

_BRANCH_GAIN = 0.5  # of each residual branch: keeps the sum of 16 of them in range


def resnet50(*, batch: Dim = 1, size: int = 224, classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """ResNet-50 (V1.5: the stride is on the 3x3 convolution, as torchvision has it).

    image: [batch, 3, size, size] -> probabilities: [batch, classes]

    Source: He et al., Deep Residual Learning for Image Recognition, 2015, arXiv:1512.03385, table 1.
    """
    net = Net("resnet50", seed)
    x = net.input("image", [batch, 3, size, size])
    x = net.max_pool(net.relu(net.conv_bn(x, 64, 7, stride=2, pad=3)), 3, 2, pad=1)
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            with net.scope(f"layer{stage}.{block}"):
                x = _bottleneck(net, x, width, stride=2 if block == 0 and stage > 1 else 1)
    return net.softmax_output(net.gemm(net.global_pool(x), classes, gain=0.2), batch)


def _bottleneck(net: Net, x: Value, width: int, stride: int) -> Value:
    y = net.relu(net.conv_bn(x, width, 1))
    y = net.relu(net.conv_bn(y, width, 3, stride=stride, pad=1))
    y = net.conv_bn(y, 4 * width, 1, gain=_BRANCH_GAIN)
    if stride > 1 or x.channels != 4 * width:
        with net.scope("downsample"):
            x = net.conv_bn(x, 4 * width, 1, stride=stride, gain=0.7)
    return net.relu(net.add(y, x))
