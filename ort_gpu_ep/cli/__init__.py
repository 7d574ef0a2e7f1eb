"""The `ort-gpu-ep` command: one file per subcommand, loaded when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "run": "Run MODEL (on random inputs where none are given) and print its outputs and where its nodes ran.",
    "explain": "Show for each node of MODEL where it goes and why, the partitions, the bytes that cross, and the memory. Runs nothing.",
    "bench": "Median and p95 of whole runs (numpy in, numpy out), split into host, upload, GPU and readback.",
    "tune": "Measure which forms of MODEL's kernels are the fastest on this adapter, and keep that for all later sessions.",
    "calibrate": "Show what runs, transfers and kernels take on the adapter a session would get; measured if it was not before.",
    "conformance": "Run ONNX's node test cases strictly (no CPU fallback) and count PASS, UNSUPPORTED and FAIL. Exit code 1 if one fails.",
    "compare": "Compare MODEL's outputs on two providers; where they differ, float64 decides. Exit code 0 if the first is right, else 1.",
    "bisect": "Find the node at which MODEL's values on the GPU leave the CPU's, and write a model that shows it. Exit code 1 if there is.",
    "doctor": "Examine the adapter a session would get, in processes of their own. Exit code 0 healthy, 1 degraded, 2 unusable or none.",
    "train": "Train the float32 weights of MODEL on the samples of a .npz file, and write the trained model.",
    "score": "Run MODEL over all rows of DATA on every adapter, and write the outputs in the same order. A killed run goes on.",
    "compress": "Write MODEL with smaller weights, as plain ONNX that stock ONNX Runtime runs with the same result.",
    "exec": "Run COMMAND with the GPU put before the providers that its onnxruntime sessions name, in its Python children too.",
    "profile": "Time each dispatch of MODEL on the GPU beside what the adapter could do, and what the host does around them.",
    "options": "List the provider options and the environment variables that set them.",
}
"""Name of a subcommand, of its module and of its function -> the function's docstring, for the list in the help: loading them all
for it takes a second, since they need numpy, ONNX Runtime and wgpu-native.
"""


HELP = {"help_option_names": ["-h", "--help"]}


class _Lazy(TyperGroup):
    """Lists the commands without loading them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.commands.get(cmd_name) or (TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in COMMANDS:
            self.commands[args[0]] = command(args[0])
        return super().resolve_command(ctx, args)


def command(name: str) -> Any:
    """A subcommand, loaded."""
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    settings = {**HELP, "allow_interspersed_args": name != "exec"}      # what follows a program's name is the program's
    alone.command(name, context_settings=settings)(getattr(import_module(f"ort_gpu_ep.cli.{name}"), name))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Lazy, name="ort-gpu-ep", no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ort-gpu-ep {sys.modules['ort_gpu_ep'].__version__}")
        raise typer.Exit


@app.callback(help="ONNX models on any GPU: run, explain and measure them, and check the driver.")
def _app(version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version.")) -> None:
    from ort_gpu_ep.config import unknown_variables  # not for the help

    unknown = list(unknown_variables(os.environ).values())
    for text in unknown:
        typer.echo(f"ConfigError: {text}", err=True)
    if unknown:
        raise typer.Exit(2)
