"""Networks as PyTorch's exporters and onnxruntime's optimiser write them, on the GPU: partitions, results, dispatches.

    python scripts/exporters.py [--families bert,gpt2] [--exporters torchscript17,dynamo18,dynamo23] [--folder DIR]
    [--json FILE]

Each network of exported_networks.py is written by each exporter, and each of these files by
onnxruntime.transformers.optimizer (where it knows the network), in float32 and float16, outer values with it. A row for
each: partitions, nodes that are left to the CPU, with the reason, the largest difference from onnxruntime's CPU on the
float32 network as a part of the output's largest number, dispatches. Law: one partition (bodies of If apart), nothing
on the CPU, right, and no more dispatches than the plain float32 network has. Exit code 1 where one is broken; what an
exporter or the optimiser can't write is counted apart. Files in DIR are used again. PyTorch, transformers and
onnxscript are needed to write them, and onnxruntime, sympy and an adapter to run them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as errors
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.optimizer import optimize_model

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ort_gpu_ep import InferenceSession  # noqa: E402
from ort_gpu_ep.comparison.values import difference  # noqa: E402

EXPORTERS = ("torchscript17", "dynamo18", "dynamo23")
VARIANTS = ("plain", "optimised", "plain f16", "optimised f16")
SIZES = {"batch": 3, "length": 13, "total": 20, "past": 7, "target": 6, "texts": 3, "images": 2}
"""Of the open axes, in the runs that are compared; exported with others."""
TOLERANCE = {"f16": 2e-2, "f32": 1e-4}
"""As a part of an output's largest number."""


@dataclass
class Row:
    """One file. unmade: why it could not be written. error: why it did not run. over: dispatches more than the plain
    float32 network of this exporter takes.
    """

    family: str
    exporter: str
    variant: str
    partitions: int = 0
    gpu: int = 0
    cpu: tuple[str, ...] = ()
    difference: float = 0.0
    dispatches: int = 0
    over: int = 0
    fallbacks: int = 0
    unmade: str = ""
    error: str = ""

    @property
    def good(self) -> bool:
        near = self.difference <= TOLERANCE["f16" if self.variant.endswith("f16") else "f32"]
        ran = not self.error and not self.unmade and not self.fallbacks
        return ran and near and self.partitions == 1 and not self.cpu and self.over <= 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--families", default="", help="names, with commas between; all of them by default")
    parser.add_argument("--exporters", default=",".join(EXPORTERS))
    parser.add_argument("--folder", type=Path, help="where the models are kept; a temporary one by default")
    parser.add_argument("--json", type=Path, help="a file for all numbers")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(measured(families(asked.families, folder), asked.exporters.split(","), folder))
    if asked.json:
        asked.json.write_text(json.dumps([{**asdict(row), "good": row.good} for row in rows], indent=1))
    unmade = sum(bool(row.unmade) for row in rows)
    bad = sum(not row.good for row in rows) - unmade
    print(f"{len(rows) - unmade} models, {len(rows) - unmade - bad} as they should be; {unmade} could not be written")
    sys.exit(bad > 0)


def families(names: str, folder: Path) -> list[str]:
    if names:
        return names.split(",")
    from scripts.exported_networks import FAMILIES

    return list(FAMILIES)


def measured(names: list[str], exporters: list[str], folder: Path) -> Iterator[Row]:
    """Prints each row as it is measured."""
    for family in names:
        for exporter in exporters:
            plain = 0
            for variant in VARIANTS:
                row = row_of(family, exporter, variant, folder)
                plain = plain or row.dispatches
                row.over = row.dispatches - plain
                show(row)
                yield row


def row_of(family: str, exporter: str, variant: str, folder: Path) -> Row:
    row, log = Row(family, exporter, variant), folder / f"{family}.{exporter}.{variant}.txt"
    row.unmade, file = attempt(lambda: made(family, exporter, variant, folder), log)
    if file:
        row.error, _ = attempt(lambda: measure(row, plain_of(family, exporter, folder), file), log)
    return row


def attempt(what: Callable[[], Any], log: Path) -> tuple[str, Any]:
    """What became of it: an error in a line (all of it is in the log), and what it returned. Exporters print much: none
    of it is shown."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return "", what()
    except Exception as error:
        log.write_text(traceback.format_exc())
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", None


def show(row: Row) -> None:
    mark = "  " if row.good else "* "
    print(f"{mark}{row.family:16} {row.exporter:14} {row.variant:14}", end="")
    if row.error or row.unmade:
        print(f" not written: {row.unmade}" if row.unmade else f" {row.error}", flush=True)
        return
    more = f" ({row.over:+})" if row.over else ""
    fallbacks = f", {row.fallbacks} fallbacks" if row.fallbacks else ""
    where = f"{row.partitions} partitions, {row.gpu:3} nodes on the GPU"
    print(f" {where}, difference {row.difference:.1e}, {row.dispatches} dispatches{more}{fallbacks}", flush=True)
    for why, count in Counter(row.cpu).items():
        print(f"      {count} x {why}", flush=True)


def plain_of(family: str, exporter: str, folder: Path) -> Path:
    return folder / f"{family}.{exporter}.onnx"


def made(family: str, exporter: str, variant: str, folder: Path) -> Path:
    """A file: as it was exported (with what its inputs are beside it), or what the optimiser and the converter to
    float16 make of that."""
    plain = plain_of(family, exporter, folder)
    if not plain.exists():
        from scripts.exported_networks import export

        network = export(family, exporter, plain)
        told = {"axes": network.axes, "optimizer": network.optimizer, "heads": network.heads, "width": network.width}
        plain.with_suffix(".json").write_text(json.dumps(told))
    path = plain if variant == "plain" else plain.with_suffix(f".{variant.replace(' ', '.')}.onnx")
    if not path.exists():
        onnx.save(converted(plain, variant), path)
    return path


def converted(plain: Path, variant: str) -> onnx.ModelProto:
    if variant == "plain f16":
        return convert_float_to_float16(onnx.load(plain))
    told = json.loads(plain.with_suffix(".json").read_text())
    if not told["optimizer"]:
        raise LookupError("onnxruntime.transformers.optimizer has no type for it")
    optimised = optimize_model(str(plain), told["optimizer"], told["heads"], told["width"])
    if variant.endswith("f16"):
        optimised.convert_float_to_float16(keep_io_types=False)
    return optimised.model


def measure(row: Row, plain: Path, path: Path) -> None:
    feeds, given = taken(plain, path)
    wanted = on_cpu(plain, feeds)
    session = InferenceSession(str(path), quiet(), provider_options={"placement": "gpu"})
    for _ in range(2):  # the second run was recorded ahead
        got = session.run(None, given)
    for name, ours, theirs in zip([o.name for o in session.get_outputs()], got, wanted, strict=True):
        found = difference(name, ours.astype(theirs.dtype), theirs)
        row.difference = max(row.difference, np.inf if found.misplaced else found.relative)
    told = session.explain()
    row.partitions = len(told.reports[0].partitions) if told.reports else 0
    row.gpu = told.count("gpu")
    row.cpu = tuple(
        f"{n.op}: {n.code} {n.reason}" for report in told.reports for n in report.nodes if n.device == "cpu"
    )
    row.dispatches = sum(m.dispatches for m in told.memory if m.exact)
    row.fallbacks = session.stats()["fallbacks"]


def quiet() -> onnxruntime.SessionOptions:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return settings


def on_cpu(path: Path, feeds: dict[str, Any]) -> list[Any]:
    return onnxruntime.InferenceSession(str(path), quiet(), providers=["CPUExecutionProvider"]).run(None, feeds)


def taken(plain: Path, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of the float32 network, and the same for this one. Some files have RotaryEmbedding with the positions of
    one row for all rows, which onnxruntime refuses: those run with one row.
    """
    inputs = onnx.load(path, load_external_data=False).graph.input
    half = {value.name for value in inputs if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16}
    axes = json.loads(plain.with_suffix(".json").read_text())["axes"]
    for batch in (SIZES["batch"], 1):
        feeds = random_feeds(plain, axes, {**SIZES, "batch": batch})
        given = {name: value.astype(np.float16) if name in half else value for name, value in feeds.items()}
        # onnxruntime's CPU does not have all that its optimiser writes
        with contextlib.suppress(errors.NotImplemented):
            try:
                on_cpu(path, given)
            except errors.InvalidArgument:
                continue
        return feeds, given
    raise LookupError("onnxruntime refuses its own inputs")


def random_feeds(path: Path, axes: dict[str, dict[str, str]], sizes: dict[str, int]) -> dict[str, Any]:
    random = np.random.default_rng(7)
    feeds = dict[str, Any]()
    for value in onnx.load(path, load_external_data=False).graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        for axis, name in axes.get(value.name, {}).items():
            shape[int(axis)] = sizes[name]
        feeds[value.name] = values(value.name, shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type), random)
    return feeds


def values(name: str, shape: list[int], dtype: np.dtype[Any], random: np.random.Generator) -> Any:
    """Of a mask the last row is padded by three, but where the axis is that of a cache; kinds are 0 and 1; the rest are
    tokens or noise."""
    if "mask" in name:
        mask = np.ones(shape, dtype)
        if shape[-1] != SIZES["total"]:
            mask[-1, -3:] = 0
        return mask
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        return random.integers(0, 2 if "type" in name else 200, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


if __name__ == "__main__":
    main()
