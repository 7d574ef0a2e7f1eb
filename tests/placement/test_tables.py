"""The tables of benchmarks.shapes, played with told times: auto is on the better side of each size from its third run
on."""

from __future__ import annotations

import random
from statistics import median

import pytest

from ort_gpu_ep.placement.decider import LAW, LAW_S
from tests.placement.simulation import Machine, Truth, line, uneven

WIDTHS = (320.0, 160.0, 240.0, 480.0, 640.0, 96.0, 128.0, 800.0, 400.0, 1000.0, 560.0, 200.0, 720.0)
LENGTHS = (64.0, 16.0, 128.0, 24.0, 96.0, 8.0, 48.0, 32.0, 256.0, 80.0, 40.0, 112.0, 20.0)

TABLES = {
    "recogniser": (WIDTHS, line(2.2, 6.0), line(0.87, 0.7)),
    "recogniser, slow GPU": (WIDTHS, line(1.0, 4.3), line(1.9, 1.2)),
    "minilm": (LENGTHS, line(1.5, 12.5), line(1.67, 3.6)),
    "minilm, slow CPU": (LENGTHS, line(1.0, 27.0), line(1.9, 5.0)),
}
"""Sizes in the order of the benchmark, and what the CPU and the GPU take: about as measured on an H200 for the first
and the third."""

NOISE, DISTURBED, UNEVEN = 0.05, 0.05, 0.05
"""Of a run's time, of all runs, of a size against its neighbours."""

ASLEEP = 4.8


def block(made: Machine, work: float, rest_s: float) -> list[str]:
    """The candidates of the runs that count. As benchmarks.shapes: the CPU's session and the GPU's come first, or a
    pause before each run."""
    begin = len(made.ran)
    if rest_s:
        made.runs(work, 20, pause_s=rest_s)
        return [name for _, name, _ in made.ran[begin + 10 :]]
    made.now_s += 0.35
    made.others_use_the_gpu(work, 0.95)
    made.runs(work, 33)
    return [name for _, name, _ in made.ran[begin + 2 :]]


def worse(sizes: tuple[float, ...], cpu: Truth, gpu: Truth, rest_s: float, seed: int) -> list[str]:
    """The sizes at which auto does not keep to the law, and by how much. Noise aside: what its candidates take
    undisturbed."""
    rng, wrong = random.Random(7 * seed + 1), []
    truth = {"cpu": uneven(cpu, sizes, UNEVEN, rng), "gpu": uneven(gpu, sizes, UNEVEN, rng)}
    made = Machine(truth, noise=NOISE, disturbed=DISTURBED, asleep=ASLEEP, seed=seed)
    made.race(sizes[0])
    for work in sizes:
        took_s = {"cpu": truth["cpu"](work), "gpu": truth["gpu"](work) * (ASLEEP if rest_s else 1.0)}
        auto_s, better_s = median(took_s[name] for name in block(made, work, rest_s)), min(took_s.values())
        if auto_s > LAW * better_s + LAW_S:
            wrong.append(f"seed {seed}, size {work:g}: {auto_s / better_s:.2f} of the better side")
    return wrong


@pytest.mark.parametrize("rest_s", [0.0, 0.2])
@pytest.mark.parametrize("table", TABLES)
def test_each_size_of_the_tables_is_on_the_better_side(table: str, rest_s: float) -> None:
    assert not [text for seed in range(12) for text in worse(*TABLES[table], rest_s, seed)]
