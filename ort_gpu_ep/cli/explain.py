"""ort-gpu-ep explain: which node goes where and why, at the sizes that other commands run with, without running the
model there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.inputs import feeds, sizes_of
from ort_gpu_ep.cli.node_data import node_data_of
from ort_gpu_ep.cli.page import page_of
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.files import whole
from ort_gpu_ep.health.open_adapter import tuning_key
from ort_gpu_ep.inputs.guess import NoGuessError, inputs_of, with_sizes
from ort_gpu_ep.ir.types import MAX_TOLD
from ort_gpu_ep.kernels import tuned
from ort_gpu_ep.kernels.target import Choice
from ort_gpu_ep.plugin.explain import ON, Explanation, why_of
from ort_gpu_ep.terminal import printable

_COLOURS = {"gpu": "green", "host": "cyan", "cpu": "yellow"}

MOST_LISTED = 40
"""Nodes that are listed one by one without being asked for."""


By = StrEnum("By", ["OP", "REASON", "BLOCK"])
"""What `--group` may say: explain.GROUPS."""

Device = StrEnum("Device", ["GPU", "HOST", "CPU"])
"""What `--only` may say."""

Order = StrEnum("Order", ["MODEL", "NAME", "OP", "DEVICE"])
"""What `--sort` may say."""

_KEYS: dict[Order, Callable[[Any], Any]] = {
    Order.MODEL: lambda node: 0,
    Order.NAME: lambda node: node.name,
    Order.OP: lambda node: node.op,
    Order.DEVICE: lambda node: node.device,
}


@shared.reports_errors
def explain(
    model: shared.ModelArgument,
    option: shared.OptionOption = None,
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    seed: shared.SeedOption = 0,
    nodes: Annotated[
        bool | None, typer.Option("--nodes/--no-nodes", help="A line for each node (default: of up to 40).")
    ] = None,
    group: Annotated[By | None, typer.Option("--group", help="Print a line for each group of nodes instead.")] = None,
    only: Annotated[Device | None, typer.Option("--only", help="Only the nodes on this device.")] = None,
    sort: Annotated[Order, typer.Option("--sort", help="Order of the nodes.")] = Order.MODEL,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="NODE",
            help="The kernels of this node, and of which forms each was \
taken: what each form is estimated to take, and what `tune` measured.",
        ),
    ] = None,
    html: Annotated[
        Path | None, shared.file_to_write("--html", "Write an HTML page with the graph.", (".html", ".htm"))
    ] = None,
    node_data: Annotated[
        Path | None,
        shared.file_to_write(
            "--node-data", "Write where each node runs, to open in model-explorer beside the model.", (".json",)
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also run it on the GPU, and show what each kernel takes.")
    ] = False,
    json: shared.JsonOption = False,
) -> None:
    """Show where each node of MODEL runs and why, the partitions, the bytes copied, and the memory. Only --profile runs
    it."""
    options = {**({"placement": "gpu"} if profile else {}), **shared.pairs(option, "--option")}
    session, values = _sized_session(model, options, (inputs, dims, shapes, seed))
    if profile:
        shared.check_gpu(session)
        if values is None:
            raise ModelError(
                "--profile runs the model, for which inputs are missing: give them by --input, --dim or --shape"
            )
    explained = session.explain(profile=values if profile else False)
    count = sum(len(report.nodes) for report in explained.reports)
    write_pages(model.stem, explained, html, node_data)
    kernels = _kernels(explained, kernel, resolve(options)) if kernel is not None else []
    if json:
        groups, shown = (
            {"groups": _groups(explained, group)} if group else {},
            {"kernels": kernels} if kernel is not None else {},
        )
        shared.print_json({**explained.as_dict(), **groups, **shown})
        return
    if kernel is not None:
        for row in kernels:
            shared.out.print(_form_table(row))
        return
    shared.out.print(shared.lines(str(explained)))
    if group is not None:
        shared.out.print(_group_table(explained, group))
    elif nodes or only is not None or (nodes is None and count <= MOST_LISTED):
        shared.out.print(
            _table(explained, only, sort) if only is None or explained.count(only) else f"no node is {ON[only]}"
        )
    elif nodes is None:
        shared.out.print(_group_table(explained, By.OP))
        shared.out.print(f"--nodes lists all {count} nodes, --only cpu those on the CPU, --html FILE draws them")
    for path in (html, node_data):
        if path is not None:
            shared.out.print(f"written: {path}", soft_wrap=True)


def write_pages(title: str, explained: Explanation, html: Path | None, node_data: Path | None) -> None:
    """What was asked for of --html and --node-data."""
    if html is not None:
        with whole(html) as part:
            part.write_text(page_of(title, explained), encoding="utf-8")
    if node_data is not None:
        with whole(node_data) as part:
            part.write_text(dumps(node_data_of(explained), indent=1), encoding="utf-8")


def _sized_session(
    model: Path, options: Mapping[str, str], given: tuple[Any, ...]
) -> tuple[Any, dict[str, Any] | None]:
    """The model with the sizes that run, bench and compare give it, and the inputs that have them. given: what feeds()
    takes."""
    shared.check_file(model)
    declared = inputs_of(model)
    values: Sequence[Any] = shared.cpu_session(model).get_inputs() if declared is None else declared
    try:
        arrays = feeds(values, model, *given)
    except NoGuessError as error:  # what runs nothing needs no inputs
        shared.err.print(f"sizes stay open: {error}")
        return shared.open_session(model, options, sizes=sizes_of(given[1])), None
    sizes = {name: np.shape(array) for name, array in arrays.items()}
    pairs = [pair for value in values for pair in zip(value.shape, sizes[value.name], strict=False)]
    unnamed = any(not isinstance(dim, (int, str)) for dim, _ in pairs)
    named = {dim: size for dim, size in pairs if isinstance(dim, str)}
    try:
        return shared.open_session(
            model, options, sizes=named, data=with_sizes(model, sizes) if unnamed else None
        ), arrays
    except Exception as error:
        if not (named or unnamed) or not type(error).__module__.startswith("onnxruntime"):
            raise
        # a branch that these sizes do not take may be impossible with them
        session = shared.open_session(model, options)
        shared.err.print(f"sizes stay open: with these onnxruntime rejects the model: {error}")
        return session, arrays


def _kernels(explained: Explanation, name: str, config: Config) -> list[dict[str, Any]]:
    """For JSON and tables: each kernel of a node with its forms, by estimate the fastest first. Raises ModelError where
    it has none."""
    kernels = explained.kernels_of(name)
    if not kernels:
        raise ModelError(
            f"{name}: no kernel is planned for a node of this name. --nodes lists the nodes and their devices; with "
            "-o placement=gpu all that can be are on the GPU"
        )
    info, _ = choose(config.adapter)
    choices, rows = tuned.read(config.cache_path, tuning_key(info)).choices, []
    for label, kernel in kernels.items():
        choice = kernel.choice or Choice("", "the only one", ("the only one",))
        measured = choices[choice.key].ns if choice.key in choices else {}
        forms = [
            {"form": form, "estimated_us": ns / 1e3, "measured_us": measured[form] / 1e3 if form in measured else None}
            for form, ns in choice.estimates_ns.items()
        ]
        rows.append(
            {"kernel": label, "choice": choice.key, "form": choice.form, "because": choice.because, "forms": forms}
        )
    return rows


def _form_table(kernel: Mapping[str, Any]) -> Table:
    """The best forms by estimate, and the one that was taken."""
    chosen = f": {kernel['form']}, {kernel['because']}" if kernel["forms"] else ": it has one form"
    table = Table(
        "form", "estimated us", "measured us", title=Text(printable(kernel["kernel"] + chosen)), title_justify="left"
    )
    for place, row in enumerate(kernel["forms"]):
        taken, measured = row["form"] == kernel["form"], row["measured_us"]
        if place < MAX_TOLD or taken:
            table.add_row(
                Text(row["form"], "green" if taken else ""),
                f"{row['estimated_us']:.1f}",
                "" if measured is None else f"{measured:.1f}",
            )
    if len(kernel["forms"]) > MAX_TOLD:
        table.caption = f"{len(kernel['forms'])} forms; --json has all of them"
    return table


def _groups(explained: Explanation, by: By) -> list[dict[str, object]]:
    return [{"name": g.name, "gpu": g.gpu, "host": g.host, "cpu": g.cpu} for g in explained.grouped(by)]


def _group_table(explained: Explanation, by: By) -> Table:
    table = Table(str(by), "nodes", "GPU", "host", "CPU")
    for group in explained.grouped(by):
        table.add_row(group.name, *(str(count or "") for count in (group.nodes, group.gpu, group.host, group.cpu)))
    return table


def _table(explained: Explanation, only: Device | None, sort: Order) -> Table:
    """A reason is written out at the first node that has it; later ones name that node."""
    table, first = Table("node", "op", "device", "partition", "why"), dict[str, str]()
    for report in explained.reports:
        for node in sorted((n for n in report.nodes if only is None or n.device == only), key=_KEYS[sort]):
            colour = _COLOURS[node.device]
            part = str(node.partition) if node.partition >= 0 else ""
            named = first.setdefault(node.reason, node.name)
            seen = named != node.name and len(named) < len(node.reason)
            table.add_row(
                node.name,
                node.op,
                Text(node.device, colour),
                part,
                f"{node.code}, see {named}" if seen else why_of(node),
            )
    return table
