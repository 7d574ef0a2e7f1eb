"""The report of a compression: a line for each layer, and totals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ort_gpu_ep.compression.samples import Comparison

RANDOM, FITTED, HELD = "random", "fitted to", "held out"

FEW = 100
"""Samples below which a report has counts, no percentage: one sample more or less would be over a point."""


@dataclass(frozen=True)
class LayerReport:
    """nbytes, packed_nbytes: of the weight before and after. density: part of the weights that is not zero.

    weight_error, output_error: relative L2 errors, of the weight and (with calibration data) of the layer's product;
    None where unknown. asked: the method before `max_error` took a gentler one.
    """

    name: str
    op: str
    asked: str
    method: str
    nbytes: int
    packed_nbytes: int
    density: float
    weight_error: float
    output_error: float | None = None


@dataclass(frozen=True)
class Report:
    """file_nbytes: of the model before and after. compared: its outputs before and after; None where the model did not
    run on any input. on: what samples these were: `held out` from fitting, `fitted to`, or `random`. notes: what a user
    should know.
    """

    layers: tuple[LayerReport, ...]
    file_nbytes: tuple[int, int]
    compared: Comparison | None
    on: str = RANDOM
    notes: tuple[str, ...] = ()

    @property
    def output_error(self) -> float | None:
        """The largest relative L2 error of an output; None where nothing was compared."""
        return None if self.compared is None else self.compared.error

    @property
    def agreement(self) -> float | None:
        """Part of the predictions that are the same; None on random inputs, which say nothing of it."""
        return (
            self.compared.same / self.compared.predictions
            if self.compared and self.compared.predictions and self.on != RANDOM
            else None
        )

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Part of the predictions that are right, before and after; None without labels."""
        both = self.compared
        return (
            None
            if both is None or both.right is None
            else (both.right[0] / both.predictions, both.right[1] / both.predictions)
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "output_error": self.output_error,
            "agreement": self.agreement,
            "accuracy": self.accuracy,
        }

    def lines(self) -> Iterator[str]:
        for layer in self.layers:
            output = "" if layer.output_error is None else f", output error {layer.output_error:.1e}"
            asked = "" if layer.asked == layer.method else f" (asked: {layer.asked})"
            yield (
                f"{layer.name} ({layer.op}): {layer.method}{asked}, {layer.nbytes:,} -> {layer.packed_nbytes:,} B, "
                f"density {layer.density:.0%}, weight error {layer.weight_error:.1e}{output}"
            )
        before, after = self.file_nbytes
        yield f"file: {before:,} -> {after:,} B ({after / before:.1%})"
        comparison = self.compared
        if comparison is not None and comparison.error is not None:
            yield f"outputs differ by {comparison.error:.1e} (relative L2) on {_counted(comparison.samples, self.on)}"
        if comparison is not None and self.agreement is not None:
            yield f"same prediction: {_part(comparison.same, comparison.predictions)}"
        if comparison is not None and comparison.right is not None:
            before_after = " -> ".join(_part(count, comparison.predictions) for count in comparison.right)
            yield f"right predictions: {before_after}"
        yield from self.notes


def _counted(count: int, on: str) -> str:
    inputs = "sample" if on != RANDOM else "random input"
    what = {RANDOM: "", HELD: " held out from fitting", FITTED: " that it was fitted to"}[on]
    return f"{count:,} {inputs}{'s' if count != 1 else ''}{what}"


def _part(count: int, whole: int) -> str:
    """A percentage of few would say more than is known."""
    return f"{count:,} of {whole:,}" + (f" ({count / whole:.1%})" if whole >= FEW else "")
