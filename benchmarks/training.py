"""Training steps: ours on the GPU, the same step on ONNX Runtime's CPU, and torch where it is installed; one process,
sides in turn.

    python -m benchmarks.training [NAME ...] [--batch 32] [--batch 512] [--optimizer sgd] [--steps 100] [--blocks 4]
      [--option NAME=VALUE]
                                  [--json FILE] [--markdown] [--plot FILE]

Names are those of CASES (default: DEFAULT; with --plot LSTM, which it draws). A step is feeding a batch from the host,
forward, backward and update; the loss is read after every 10th. "held" is fit() over samples that the device holds.
"numpy" is the step's session on the GPU with everything carried as arrays in and out: what a loop without resident
state takes. torch is eager, TF32 off, on CUDA where it has one (data there already), else on the CPU. Medians of blocks
of 10 steps, ms a step. "host" is the part of a step's time that its thread spends before the step is on its way.
"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from rich.console import Console
from rich.table import Table

import models
from benchmarks import sides
from ort_gpu_ep.cli.plot import pyplot
from ort_gpu_ep.training import SGD, Adam, Optimizer, Trainer
from ort_gpu_ep.training.resident import open_session
from ort_gpu_ep.training.step import LABEL, LOSS, WEIGHT, TrainingStep, make_training_step
from ort_gpu_ep.training.updates import HYPER, numbers

console, progress = sides.console(), Console(stderr=True)

READ_EVERY = 10
"""Steps after which the loss is read: a block, whose time is taken as a whole."""


@dataclass(frozen=True)
class Case:
    """A model of models/, and how many classes its labels have."""

    model: str
    classes: int
    sizes: dict[str, Any] = field(default_factory=dict)

    def build(self, batch: int) -> onnx.ModelProto:
        return models.build(self.model, batch=batch, **self.sizes)


LSTM = {f"lstm {layers}x{hidden}": (layers, hidden) for layers in (1, 2, 3) for hidden in (32, 64, 128, 256)}
"""(layers, hidden size) of what --plot draws."""

CASES = {
    "mlp_16": Case("mlp_16", 16),
    "mlp_16x3": Case("mlp_16x3", 16),
    "mlp_256": Case("mlp_256", 256),
    "mlp_784": Case("mlp_784", 16),
    "lenet5": Case("lenet5", 10),
    **{name: Case("har_lstm", 6, {"layers": layers, "hidden": hidden}) for name, (layers, hidden) in LSTM.items()},
    "mobilenet_v2": Case("mobilenet_v2", 1000),
}
DEFAULT = ("mlp_16", "mlp_16x3", "mlp_256", "mlp_784", "lenet5", "lstm 2x32")
OPTIMIZERS: dict[str, Optimizer] = {"sgd": SGD(0.01), "adam": Adam(1e-3)}

Step = Callable[[], Any]
"""Takes a step; gives something that becomes a number by float() once it is waited for."""


Block = Callable[[], object]
"""Takes READ_EVERY steps, and waits for them."""


@dataclass
class Row:
    """Milliseconds a step of each side; of "gpu" also what its thread spends, and the bytes that a step moves, its loss
    included."""

    name: str
    optimizer: str
    batch: int
    ms: dict[str, float]
    host_ms: float
    nbytes: float

    def as_dict(self) -> dict[str, Any]:
        return vars(self)


def ours(model: onnx.ModelProto, optimizer: Optimizer, x: Any, y: Any, options: dict[str, Any]) -> tuple[Step, Trainer]:
    trainer = Trainer(model, loss="cross_entropy", optimizer=optimizer, options=options)
    return (lambda: trainer.step(x, y)), trainer


def held(model: onnx.ModelProto, optimizer: Optimizer, x: Any, y: Any, options: dict[str, Any]) -> Block:
    """READ_EVERY steps over samples that the device holds."""
    trainer = Trainer(model, loss="cross_entropy", optimizer=optimizer, options=options)
    many, labels = (np.concatenate([a] * READ_EVERY) for a in (x, y))
    return lambda: trainer.fit(many, labels, batch=len(x))


def block_of(step: Step) -> Block:
    """READ_EVERY steps, and the last one's loss."""

    def run() -> None:
        for _ in range(READ_EVERY):
            last = step()
        float(last)

    return run


def numpy_loop(step: TrainingStep, optimizer: Optimizer, x: Any, y: Any, options: dict[str, Any]) -> Step:
    """The step's session with arrays in and out."""
    session = open_session(step.model.SerializeToString(), options)
    names, state, count = [o.name for o in session.get_outputs()], dict(step.carried), [0]
    given = next(n for n in step.feeds if not n.startswith("training."))
    feeds = {given: x, LABEL: y, WEIGHT: np.full(len(x), 1 / len(x), np.float32)}

    def run() -> Any:
        out = dict(
            zip(names, session.run(None, {**feeds, HYPER: numbers(optimizer, 1, count[0]), **state}), strict=True)
        )
        state.update({n: out[f"{n}.new"] for n in state})
        count[0] += 1
        return out[LOSS].reshape(())

    return run


def torch_step(model: onnx.ModelProto, optimizer: str, x: Any, y: Any) -> tuple[str, Step] | None:
    """(side, step) in torch; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    from benchmarks.torch_peer import TorchStep

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = {"sgd": lambda p: torch.optim.SGD(p, lr=0.01), "adam": lambda p: torch.optim.Adam(p, lr=1e-3)}[optimizer]
    step = TorchStep(torch, model, make, dtype=torch.float32, device=device)
    batch = step.batch(x, y)
    return f"torch {device}", lambda: step.step(*batch)


def in_blocks(taken: dict[str, Block], count: int, blocks: int) -> dict[str, float]:
    """The median of milliseconds a step over blocks of READ_EVERY steps; the sides take turns, every other round
    backwards."""
    found: dict[str, list[float]] = {side: [] for side in taken}
    for block in taken.values():
        block()
    for i in range(blocks):
        for side in reversed(list(taken)) if i % 2 else taken:
            for _ in range(max(1, count // (blocks * READ_EVERY))):
                start = time.perf_counter()
                taken[side]()
                found[side].append((time.perf_counter() - start) * 1e3 / READ_EVERY)
    return {side: float(np.median(times)) for side, times in found.items()}


def measure(name: str, optimizer: str, batch: int, count: int, blocks: int, options: dict[str, Any]) -> Row:
    """One row of the table."""
    case, rng = CASES[name], np.random.default_rng(0)
    model, chosen = case.build(batch), OPTIMIZERS[optimizer]
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x, y = rng.normal(size=shape).astype(np.float32), rng.integers(0, case.classes, batch)
    step, trainer = ours(model, chosen, x, y, {**options, "placement": "gpu"})
    written = make_training_step(model, loss="cross_entropy", optimizer=chosen)
    on_gpu, on_cpu = {**options, "placement": "gpu"}, {"placement": "cpu"}
    steps = {
        "gpu": step,
        "cpu": ours(model, chosen, x, y, on_cpu)[0],
        "numpy": numpy_loop(written, chosen, x, y, on_gpu),
    }
    steps |= dict(found for found in [torch_step(model, optimizer, x, y)] if found)
    taken = {side: block_of(one) for side, one in steps.items()} | {"held": held(model, chosen, x, y, on_gpu)}
    ms = in_blocks(taken, count, blocks)
    before = trainer.stats()
    taken["gpu"]()
    after = trainer.stats()
    kinds = ("host_to_device_nbytes", "device_to_host_nbytes", "device_to_device_nbytes")
    nbytes = sum(after.get(k, 0) - before.get(k, 0) for k in kinds) / READ_EVERY
    return Row(name, optimizer, batch, ms, trainer.host_ms(), nbytes)


def show(rows: Sequence[Row], markdown: bool) -> None:
    names = list(dict.fromkeys(side for row in rows for side in row.ms))
    columns = ("step", "optimizer", "batch", *names, "gpu / cpu", "host", "bytes moved")
    lines = [
        (
            r.name,
            r.optimizer,
            str(r.batch),
            *(f"{r.ms[n]:.3f}" if n in r.ms else "" for n in names),
            f"{r.ms['gpu'] / r.ms['cpu']:.2f}",
            f"{r.host_ms:.3f}",
            f"{r.nbytes:,.0f}",
        )
        for r in rows
    ]
    if markdown:
        print("\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ("---",) * len(columns), *lines)))
        return
    table = Table(*columns)
    for cells in lines:
        table.add_row(*cells)
    console.print(table)


def plot(rows: Sequence[Row], path: Path) -> None:
    """A panel for each number of layers: ms a step over the hidden size, on the CPU and on the GPU."""
    drawing, counts = pyplot(), sorted({LSTM[row.name][0] for row in rows})
    figure, panels = drawing.subplots(1, len(counts), figsize=(3.2 * len(counts) + 1, 3.6), sharey=True, squeeze=False)
    kinds = dict.fromkeys((row.optimizer, row.batch) for row in rows)
    for axes, layers in zip(panels[0], counts, strict=True):
        for optimizer, batch in kinds:
            mine = sorted(
                (LSTM[r.name][1], r)
                for r in rows
                if LSTM[r.name][0] == layers and (r.optimizer, r.batch) == (optimizer, batch)
            )
            for side, mark in (("cpu", "o--"), ("gpu", "s-")):
                label = f"{side.upper()}, {optimizer}, batch {batch}"
                axes.plot([hidden for hidden, _ in mine], [row.ms[side] for _, row in mine], mark, label=label)
        axes.set(title=f"{layers} layer{'s' * (layers > 1)}", xlabel="hidden size", xscale="log", yscale="log")
        hidden_sizes = sorted({hidden for _, hidden in LSTM.values()})
        axes.set_xticks(hidden_sizes, map(str, hidden_sizes))
        axes.minorticks_off()
        axes.grid(visible=True, which="both", alpha=0.3)
    panels[0][0].set_ylabel("LSTM, 128 time steps: ms a training step")
    panels[0][0].yaxis.set_major_formatter("{x:g}")
    panels[0][-1].legend(loc="best", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    drawing.close(figure)


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Samples of a step; repeat (default 32 and 512).")] = None,
    optimizer: Annotated[list[str] | None, typer.Option(help="sgd or adam; repeat (default both).")] = None,
    steps: Annotated[int, typer.Option(help="Counted steps of each side, at least 10 a block.")] = 200,
    blocks: Annotated[int, typer.Option(help="In which the sides take turns.")] = 5,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, an option of this package.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the rows there.")] = None,
    markdown: Annotated[bool, typer.Option(help="Print the table as Markdown.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Draw LSTMs of several sizes here (PNG, SVG, ...), CPU and GPU.")
    ] = None,
) -> None:
    drawable = LSTM if picture is not None else CASES
    unknown = [n for n in names or () if n not in drawable] + [o for o in optimizer or () if o not in OPTIMIZERS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r}: expected one of {', '.join(drawable)}; optimizers are {', '.join(OPTIMIZERS)}"
        )
    options, rows = dict(text.split("=", 1) for text in option or ()), list[Row]()
    for name in names or (LSTM if picture is not None else DEFAULT):
        for size in batch or (32, 512):
            for kind in optimizer or OPTIMIZERS:
                progress.print(f"{name}, {kind}, batch {size}")
                rows.append(measure(name, kind, size, steps, blocks, options))
    show(rows, markdown)
    if picture is not None:
        plot(rows, picture)
    if json is not None:
        json.write_text(json_module.dumps([row.as_dict() for row in rows], indent=1))


if __name__ == "__main__":
    typer.run(main)
