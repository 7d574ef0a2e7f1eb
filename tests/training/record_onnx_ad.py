"""Each gradient of cases.py against onnx-ad's independent rules: `python -m tests.training.record_onnx_ad`.

Needs onnx-ad (0.3.0 made the record). Writes tests/training/onnx_ad.json: cases that agree, how far the others are,
what onnx-ad has no rule for or can't run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.training.cases import CASES
from tests.training.numeric import Case, gradient_model, run
from tests.training.random_cases import RANDOM

RECORDED = Path(__file__).with_name("onnx_ad.json")
TOLERANCE = 2e-4


def model_of(case: Case) -> onnx.ModelProto:
    """The case's node; what it is differentiated by is an input, the rest is stored."""
    arrays, tracked = case.arrays(), case.tracked()
    info = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(arrays[n].dtype), arrays[n].shape)
        for n in tracked
    ]
    outputs = [helper.make_tensor_value_info(f"y{k}", onnx.TensorProto.FLOAT, None) for k in case.used]
    stored = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in tracked]
    graph = helper.make_graph([case.node()], "case", info, outputs, stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def theirs(case: Case, reverse: Any, seeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """onnx-ad's gradients of the tracked inputs."""
    model = reverse(model_of(case), layout="onnx")
    arrays = {**case.arrays(), **{f"adj_y{k}": seeds[f"d{k}"][..., None] for k in case.used}}
    found = dict(zip([o.name for o in model.graph.output], run(model, arrays), strict=True))
    return [found[f"adj_{n}"].reshape(arrays[n].shape) for n in case.tracked()]


def main() -> None:
    import onnx_ad

    agree, differ, without = list[str](), dict[str, float](), dict[str, str]()
    for case in (*CASES, *RANDOM):
        model, _, seeds = gradient_model(case)
        ours = run(model, {**case.arrays(), **seeds})
        try:
            other = theirs(case, onnx_ad.reverse, seeds)
        except Exception as error:  # no rule, a form that it does not know, or a model that onnxruntime refuses
            without[case.id] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
            continue
        distance = max(float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in zip(ours, other, strict=True))
        if distance <= TOLERANCE:
            agree.append(case.id)
        else:
            differ[case.id] = distance
    print(f"{len(agree)} agree, {len(differ)} differ, {len(without)} without: {differ}")
    RECORDED.write_text(
        json.dumps({"onnx-ad": onnx_ad.__version__, "agree": agree, "differ": differ, "without": without}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
