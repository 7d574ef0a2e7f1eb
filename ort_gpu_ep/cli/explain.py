"""ort-gpu-ep explain: which node goes where and why, without running the model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from ort_gpu_ep.cli import shared
from ort_gpu_ep.explain import Explanation

_COLOURS = {"gpu": "green", "host": "cyan", "cpu": "yellow"}


@shared.reports_errors
def explain(
    model: shared.ModelArgument,
    option: shared.OptionOption = None,
    nodes: Annotated[bool, typer.Option("--nodes/--no-nodes", help="One line for each node.")] = True,
    json: shared.JsonOption = False,
) -> None:
    """Show for each node of MODEL where it goes and why, the partitions, the bytes that cross, and the memory. Runs nothing."""
    session = shared.open_session(model, shared.pairs(option, "--option"))
    explained = session.explain()
    if json:
        shared.print_json(explained.as_dict())
        return
    if nodes:
        shared.out.print(_table(explained))
    shared.out.print(str(explained), highlight=False, markup=False)


def _table(explained: Explanation) -> Table:
    table = Table("node", "op", "device", "partition", "why")
    for report in explained.reports:
        for node in report.nodes:
            why = f"{node.code}: {node.reason}" if node.code else f"fused into {node.fused_into}" if node.fused_into else ""
            colour = _COLOURS[node.device]
            group = str(node.partition) if node.partition >= 0 else ""
            table.add_row(node.name, node.op, f"[{colour}]{node.device}[/{colour}]", group, why)
    return table
