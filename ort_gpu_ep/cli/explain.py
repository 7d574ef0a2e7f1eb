"""ort-gpu-ep explain: which node goes where and why, without running the model."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.inputs import sizes_of
from ort_gpu_ep.cli.page import page_of
from ort_gpu_ep.plugin.explain import ON, Explanation, why_of

_COLOURS = {"gpu": "green", "host": "cyan", "cpu": "yellow"}

MOST_LISTED = 40
"""Nodes that are listed one by one without being asked for."""


class By(StrEnum):
    """What `--group` may say: explain.GROUPS."""

    OP = "op"
    REASON = "reason"
    BLOCK = "block"


class Device(StrEnum):
    """What `--only` may say."""

    GPU = "gpu"
    HOST = "host"
    CPU = "cpu"


class Order(StrEnum):
    """What `--sort` may say."""

    MODEL = "model"
    NAME = "name"
    OP = "op"
    DEVICE = "device"


_KEYS: dict[Order, Callable[[Any], Any]] = {
    Order.MODEL: lambda node: 0, Order.NAME: lambda node: node.name, Order.OP: lambda node: node.op, Order.DEVICE: lambda node: node.device}


@shared.reports_errors
def explain(
    model: shared.ModelArgument,
    option: shared.OptionOption = None,
    dims: shared.SizeOption = None,
    nodes: Annotated[bool | None, typer.Option("--nodes/--no-nodes", help="A line for each node (default: of up to 40).")] = None,
    group: Annotated[By | None, typer.Option("--group", help="Print a line for each group of nodes instead.")] = None,
    only: Annotated[Device | None, typer.Option("--only", help="Only the nodes on this device.")] = None,
    sort: Annotated[Order, typer.Option("--sort", help="Order of the nodes.")] = Order.MODEL,
    html: Annotated[Path | None, shared.file_to_write("--html", "Write an HTML page with the graph.", (".html", ".htm"))] = None,
    json: shared.JsonOption = False,
) -> None:
    """Show where each node of MODEL runs and why, the partitions, the bytes that are copied, and the memory. Does not run MODEL."""
    session = shared.open_session(model, shared.pairs(option, "--option"), sizes=sizes_of(dims, model))
    explained = session.explain()
    count = sum(len(report.nodes) for report in explained.reports)
    if html is not None:
        html.write_text(page_of(model.stem, explained), encoding="utf-8")
    if json:
        shared.print_json({**explained.as_dict(), **({"groups": _groups(explained, group)} if group else {})})
        return
    shared.out.print(shared.lines(str(explained)))
    if group is not None:
        shared.out.print(_group_table(explained, group))
    elif nodes or only is not None or (nodes is None and count <= MOST_LISTED):
        shared.out.print(_table(explained, only, sort) if only is None or explained.count(only) else f"no node is {ON[only]}")
    elif nodes is None:
        shared.out.print(_group_table(explained, By.OP))
        shared.out.print(f"--nodes lists all {count} nodes, --only cpu those on the CPU, --html FILE draws them")
    if html is not None:
        shared.out.print(f"written: {html}", soft_wrap=True)


def _groups(explained: Explanation, by: By) -> list[dict[str, object]]:
    return [{"name": g.name, "gpu": g.gpu, "host": g.host, "cpu": g.cpu} for g in explained.grouped(by)]


def _group_table(explained: Explanation, by: By) -> Table:
    table = Table(str(by), "nodes", "GPU", "host", "CPU")
    for found in explained.grouped(by):
        table.add_row(found.name, *(str(count or "") for count in (found.nodes, found.gpu, found.host, found.cpu)))
    return table


def _table(explained: Explanation, only: Device | None, sort: Order) -> Table:
    """A reason is written out at the first node that has it; later ones name that node."""
    table, first = Table("node", "op", "device", "partition", "why"), dict[str, str]()
    for report in explained.reports:
        for node in sorted((n for n in report.nodes if only is None or n.device == only), key=_KEYS[sort]):
            colour = _COLOURS[node.device]
            part = str(node.partition) if node.partition >= 0 else ""
            known = first.setdefault(node.reason, node.name)
            seen = known != node.name and len(known) < len(node.reason)
            table.add_row(node.name, node.op, Text(node.device, colour), part, f"{node.code}, see {known}" if seen else why_of(node))
    return table
