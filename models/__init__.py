"""The networks that this project is measured on.

Builders make them from the papers, with seeded random weights: `BUILDERS`, `build`. Pretrained ones are fetched from
package registries: `models.pretrained`. Random valid inputs for both: `models.inputs`. Command line: `python -m
models`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import onnx

from models import classic, growing, inception, mobile, residual, sequence, vision
from models.builder import parameter_count
from ort_gpu_ep.errors import ModelError

__all__ = ["BUILDERS", "build", "parameter_count"]

BUILDERS: dict[str, Callable[..., onnx.ModelProto]] = {
    "lenet5": classic.lenet5,
    "alexnet": classic.alexnet,
    "squeezenet1_0": classic.squeezenet1_0,
    "squeezenet1_1": classic.squeezenet1_1,
    "googlenet": inception.googlenet,
    "inception_v3": inception.inception_v3,
    "resnet50": residual.resnet50,
    "mobilenet_v1": mobile.mobilenet_v1,
    "mobilenet_v2": mobile.mobilenet_v2,
    "shufflenet": mobile.shufflenet,
    "unet": vision.unet,
    "tcn": sequence.tcn,
    "har_lstm": sequence.har_lstm,
    "mlp_16": partial(classic.mlp, widths=(16, 16)),
    "mlp_16x3": partial(classic.mlp, widths=(16, 16, 16, 16)),
    "mlp_256": partial(classic.mlp, widths=(256, 256)),
    "mlp_784": partial(classic.mlp, widths=(784, 256, 128, 16)),
    "encoder": sequence.encoder,
    "detector": vision.detector,
    "decoder": growing.decoder,
    "table_rows": growing.table_rows,
}


def build(name: str, **parameters: Any) -> onnx.ModelProto:
    """Builds one of BUILDERS; equal parameters give equal bytes.

    Raises:
        ModelError: no builder has this name, or the builder has no such parameter, or not this value.
    """
    if name not in BUILDERS:
        near = difflib.get_close_matches(name, BUILDERS, n=3)
        hint = f"; try {' or '.join(near)}" if near else ""
        raise ModelError(f"model {name!r}: no such builder, expected one of {', '.join(BUILDERS)}{hint}")
    builder = BUILDERS[name]
    known = inspect.signature(builder).parameters
    for parameter in parameters:
        if parameter not in known:
            raise ModelError(f"model {name!r}: got the parameter {parameter!r}, expected one of {', '.join(known)}")
    return builder(**parameters)
