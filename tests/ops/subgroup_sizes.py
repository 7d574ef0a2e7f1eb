"""Every kernel that uses subgroups, in workgroups smaller than a subgroup, against numpy: a process, because a driver
has one size.

Prints the subgroup size, and the sizes of the workgroups that each kernel had, as JSON. `python -m
tests.ops.subgroup_sizes`, with LP_NATIVE_VECTOR_WIDTH=128, 256 or 512 for lavapipe's subgroups of 4, 8 or 16
invocations.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health import probes as _  # noqa: F401  fills the table
from ort_gpu_ep.health.probe import PROBES, Trial, agree
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import Kernel, Limits
from ort_gpu_ep.ops import byte_vectors, experts, matvec, normalization, packed_vectors, rounded_vectors, row_forms

PROBED = (
    "subgroups",
    "fours in a subgroup",
    "matrix times vector, rows by fours",
    "attention",
    "packed weights",
    "packed weights together",
    "a vector rounded to bytes",
    "few vectors rounded to bytes",
    "sparse weights with x in workgroup memory",
    "softmax rows",
    "normalize rows",
    "mixture of packed experts",
    "recurrent layers in registers",
    "recurrent layers, a dispatch a step",
)


class Watched(Trial):
    """Remembers the workgroups of the kernels that use subgroups."""

    def _composed(self, kernel: Kernel, bindings: Mapping[str, tuple[TensorType, bool]], limits: Limits) -> str:
        if "subgroup" in kernel.features:
            SEEN[kernel.shader].add(kernel.workgroup_size)
        return super()._composed(kernel, bindings, limits)


SEEN: dict[str, set[int]] = defaultdict(set)


def pieces(trial: Trial) -> str:
    x, scale, bias = trial.normal(2, 3, 8, 10), trial.normal(3), trial.normal(3)
    wide = x.astype(np.float64)
    want = (wide - wide.mean((2, 3), keepdims=True)) / np.sqrt(wide.var((2, 3), keepdims=True) + 1e-5)
    with forced("2 pieces"):
        got = trial.node("InstanceNormalization", 6, [x, scale, bias])[0]
    agree("InstanceNormalization in pieces", got, want * scale.reshape(3, 1, 1) + bias.reshape(3, 1, 1))
    return "2 pieces"


def main() -> None:
    matvec.LANES = packed_vectors.HELD_LANES = 1
    row_forms.LANES, row_forms.MOST_HELD = 2, 32
    packed_vectors.MIN_WORKGROUP_SIZE = packed_vectors.MAX_WORKGROUP_SIZE = 4
    packed_vectors.SEVERAL_WORKGROUP_SIZE = 4
    rounded_vectors.TEAM_LANES = (8, 8)
    byte_vectors.ROUNDING_LANES = 8
    experts.SCORES_SIZE = 4
    experts.MIN_WORKGROUP_SIZE = experts.MAX_VECTOR_LANES = experts.VECTOR_ROWS  # each row has an invocation at the end
    row_forms.WIDE, normalization.PIECE_WORKGROUP_SIZE = (2, 8), 8
    trial = Watched(Gpu.open(Config()), np.random.default_rng(3))
    said, failed = {}, {}
    for name, check in {**{name: PROBES[name].check for name in PROBED}, "rows in pieces": pieces}.items():
        try:
            said[name] = check(trial)
        except WrongResultError as error:
            failed[name] = str(error)
    print(
        json.dumps(
            {
                "said": said.get("subgroups"),
                "failed": failed,
                "workgroups": {shader: sorted(sizes) for shader, sizes in SEEN.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
