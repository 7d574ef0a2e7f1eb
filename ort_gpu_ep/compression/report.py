"""What compressing a model gave: a line a layer, and sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LayerReport:
    """nbytes, packed_nbytes: of the weight before and after. density: part of the weights that is not zero.

    weight_error, output_error: relative L2 errors, of the weight and (with calibration data) of the layer's product; None where unknown.
    asked: the method before `max_error` took a gentler one.
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
    """file_nbytes: of the model before and after. output_error: of the outputs on calibration inputs, or random ones, relative L2, the
    largest of the outputs; None where the model did not run on any. agreement: part of these samples whose largest output is the same.
    notes: what a user should know.
    """

    layers: tuple[LayerReport, ...]
    file_nbytes: tuple[int, int]
    output_error: float | None
    agreement: float | None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        for layer in self.layers:
            output = "" if layer.output_error is None else f", output error {layer.output_error:.1e}"
            asked = "" if layer.asked == layer.method else f" (asked: {layer.asked})"
            yield (f"{layer.name} ({layer.op}): {layer.method}{asked}, {layer.nbytes:,} -> {layer.packed_nbytes:,} B, "
                   f"density {layer.density:.0%}, weight error {layer.weight_error:.1e}{output}")
        before, after = self.file_nbytes
        agreement = "" if self.agreement is None else f", the largest output agrees for {self.agreement:.1%} of the samples"
        outputs = "" if self.output_error is None else f"; outputs differ by {self.output_error:.1e}{agreement}"
        yield f"file: {before:,} -> {after:,} B ({after / before:.1%}){outputs}"
        yield from self.notes
