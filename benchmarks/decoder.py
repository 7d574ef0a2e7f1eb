"""What a step takes whose state grows: a decoder with a cache, and a Loop that appends a row each turn.

    python -m benchmarks.decoder [--steps 200] [--json FILE]

The decoder (models/growing.py) runs by IO binding: what a step gives as `present` lies on the device and is the next
step's `past`. Beside it a step of fixed size, the same graph with a cache of steps / 2 keys, whose inputs are bound
once; and ONNX Runtime's CPU with a cache that grows. The sides are measured one after the other. The law: a step takes
at most twice as long as one of fixed size, and none after the third compiles a pipeline.
"""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.table import Table

import models
from benchmarks import cases, sides
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep import InferenceSession

COMPILING_STEPS = 3
"""So many may compile: the cache is empty at first, then of one key, then of more."""

LAW_FACTOR = 2.0
"""Of a step's median to that of a step of fixed size."""

LOOP_RUNS = 5

console = sides.console()


class Steps:
    """A decoder's session, run step by step, its cache on a device.

    device: "gpu" or "cpu". keys: length of the cache at first, or always where the model fixes it (then every step has
    the same one).
    """

    def __init__(self, session: Any, device: str, keys: int = 0) -> None:
        self.session, self.device = session, device
        self.outputs = [o.name for o in session.get_outputs()]
        past = [i for i in session.get_inputs() if i.name.startswith("past")]
        self.grows = not isinstance(past[0].shape[2], int)
        rng = np.random.default_rng(5)
        self.past = {
            i.name: onnxruntime.OrtValue.ortvalue_from_numpy(
                rng.standard_normal((i.shape[0], i.shape[1], keys, i.shape[3])).astype("f"), device if keys else "cpu"
            )
            for i in past
        }

    def step(self, token: int) -> np.ndarray:
        """The logits after one more token."""
        binding = self.session.io_binding()
        binding.bind_cpu_input("token", np.array([[token]]))
        for name, value in self.past.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            binding.bind_output(name, "cpu" if name == "logits" else self.device)
        self.session.run_with_iobinding(binding)
        given = dict(zip(self.outputs, binding.get_outputs(), strict=True))
        if self.grows:
            self.past = {n: given[n.replace("past", "present", 1)] for n in self.past}
        return np.asarray(given["logits"].numpy())


def timed(steps: Steps, count: int) -> list[float]:
    """Milliseconds of each step, its logits on the host."""
    rng, times = np.random.default_rng(1), []
    for token in rng.integers(0, 512, count):
        start = time.perf_counter()
        steps.step(int(token))
        times.append((time.perf_counter() - start) * 1e3)
    return times


def opened(model: Any, placement: str, **options: str) -> Any:
    data = model.SerializeToString()
    if placement == "cpu":
        return onnxruntime.InferenceSession(data, cases.quiet(), providers=["CPUExecutionProvider"])
    return cases.waited(InferenceSession(data, cases.quiet(), provider_options={"placement": placement, **options}))


def decoder(count: int) -> dict[str, Any]:
    """The sides' steps: growing on the GPU, of fixed size there, growing on the CPU."""
    growing, fixed = (opened(m, "gpu") for m in (models.build("decoder"), models.build("decoder", past=count // 2)))
    gpu = growing._state.gpu
    rows: dict[str, dict[str, Any]] = {}
    for side, steps in (
        ("fixed", Steps(fixed, "gpu", count // 2)),
        ("growing", Steps(growing, "gpu")),
        ("ort_cpu", Steps(opened(models.build("decoder"), "cpu"), "cpu")),
    ):
        first = timed(steps, COMPILING_STEPS)
        made = gpu.compiled
        later = timed(steps, max(count - COMPILING_STEPS, 1))
        rows[side] = {
            "first_ms": first[0],
            "median_ms": float(np.median(later)),
            "p95_ms": float(np.percentile(later, 95)),
            "compiled_later": gpu.compiled - made,
        }
    over = rows["growing"]["median_ms"] / rows["fixed"]["median_ms"]
    return {
        "steps": count,
        "adapter": gpu.info.name,
        "sides": rows,
        "over": over,
        "lawful": over <= LAW_FACTOR and not rows["growing"]["compiled_later"],
    }


def loop() -> dict[str, Any]:
    """The first runs of the Loop that appends a row each turn: on the GPU whatever is predicted, with placement=gpu,
    and on the CPU."""
    model = models.build("table_rows")
    feeds = make_inputs(model_inputs(model))
    return {
        side: [sides.timed_ms(session, feeds) for _ in range(LOOP_RUNS)]
        for side, session in (
            ("turns on the GPU", opened(model, "gpu", strict="1")),
            ("placement=gpu", opened(model, "gpu")),
            ("ort_cpu", opened(model, "cpu")),
        )
    }


def show(found: dict[str, Any]) -> None:
    steps = found["decoder"]
    table = Table(
        "side",
        "first step, ms",
        "median",
        "p95",
        f"compiled after step {COMPILING_STEPS}",
        title=f"decoder, {steps['steps']} steps, {steps['adapter']}",
    )
    for side, row in steps["sides"].items():
        table.add_row(side, *(f"{row[k]:.3f}" for k in ("first_ms", "median_ms", "p95_ms")), str(row["compiled_later"]))
    console.print(table)
    console.print(f"growing / fixed: {steps['over']:.2f}, at most {LAW_FACTOR:g}{'' if steps['lawful'] else ' (!)'}")
    table = Table("side", "first run, ms", "second", "best of the others", title="table_rows, a Loop of 50 turns")
    for side, times in found["loop"].items():
        table.add_row(side, f"{times[0]:.1f}", f"{times[1]:.1f}", f"{min(times[2:]):.1f}")
    console.print(table)


def main(
    steps: Annotated[
        int, typer.Option(min=2 * COMPILING_STEPS, help="Steps of the decoder, fewer than its context of 1024.")
    ] = 200,
    json: Annotated[Path | None, typer.Option(help="Also write what was found there.")] = None,
) -> None:
    """Measures what grows."""
    found = {"decoder": decoder(steps), "loop": loop()}
    show(found)
    if json is not None:
        json.write_text(json_module.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
