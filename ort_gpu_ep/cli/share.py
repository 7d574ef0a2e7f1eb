"""`bench --share`: what was measured as markdown, for an issue or a chat."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from ort_gpu_ep.terminal import printable


def markdown(
    model: str, command: str, facts: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """model: its name. command: what measured it, without folders. facts: of peers.about()."""
    nodes, driver = facts["nodes"], f" ({facts['driver']})" if facts["driver"] else ""
    table = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        [
            f"**{_plain(model)}** on {_plain(facts['adapter'])}{_plain(driver)}",
            "",
            *(f"| {' | '.join(map(_plain, row))} |" for row in table),
            "",
            f"placement={facts['placement']}: {nodes['gpu']} nodes on the GPU, {nodes['cpu']} on the CPU; "
            f"ort-gpu-ep {facts['ort_gpu_ep']}, "
            f"onnxruntime {facts['onnxruntime']}, Python {platform.python_version()}, {platform.system()} "
            f"{platform.machine()}",
            "",
            f"`{printable(command).replace('`', '?')}`",
        ]
    )


def rows_of(values: Mapping[str, Any]) -> tuple[int, str]:
    """How many rows a run has, and what they are: images or rows. values: its inputs."""
    first = next((array for array in values.values() if getattr(array, "ndim", 0) > 1), None)
    is_image = first is not None and first.ndim == 4 and (first.shape[1] in (1, 3, 4) or first.shape[3] in (1, 3, 4))
    return (int(first.shape[0]) if first is not None else 1), "images" if is_image else "rows"


def _plain(text: str) -> str:
    """In a table, and without markup: names come from models and drivers."""
    return "".join(f"\\{c}" if c in "\\|*_`<>[]" else c for c in printable(text))
