"""Loss, metrics and outputs of the current model on other samples, on the trainer's device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.resident import Resident, open_session
from ort_gpu_ep.training.step import LOSS, TrainingStep


class Evaluator:
    """A session of an evaluation step, which reads the parameters where the trainer has them."""

    def __init__(self, step: TrainingStep, options: Mapping[str, Any], placement: str) -> None:
        self.step, self.placement = step, placement
        self.session = open_session(step.model.SerializeToString(), {**options, "placement": placement})
        self._binding = self.session.io_binding()

    def run(
        self, resident: Resident, feeds: Mapping[str, Array], fixed: Mapping[str, Array], output: bool = False
    ) -> dict[str, Array]:
        """Loss and metrics of a batch, or the model's output. fixed: parameters that training does not change."""
        binding = self._binding
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        for name in self.step.carried:
            if name in resident.values:
                binding.bind_ortvalue_input(name, resident.values[name])
            else:
                binding.bind_cpu_input(name, fixed[name])
        names = [self.step.output] if output else [LOSS, *(f"training.{m}" for m in self.step.metrics)]
        read = {i.name for i in self.session.get_inputs()}
        for name, array in feeds.items():
            if name in read:
                binding.bind_cpu_input(name, np.ascontiguousarray(array).reshape(array.shape))
        for name in names:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        return {
            name.removeprefix("training."): value.numpy()
            for name, value in zip(names, binding.get_outputs(), strict=True)
        }
