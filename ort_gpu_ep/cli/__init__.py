"""The `ort-gpu-ep` command: one file per subcommand, loaded when it is called."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "run": "Run MODEL and print its outputs and where each node ran. Inputs that you don't give are random.",
    "explain": "Show where each node of MODEL runs and why, the partitions, the bytes copied, and the memory. Only "
    "--profile runs it.",
    "inspect": "Show MODEL's inputs, outputs, opset, size, external files, and its ops with those that have kernels. "
    "Needs no GPU.",
    "bench": "Measure the latency of MODEL (median and p95 of whole runs), split into host, upload, GPU and readback.",
    "tune": "Measure which kernels are the fastest for MODEL on this adapter, and store the result for later sessions.",
    "calibrate": "Show how long runs, transfers and kernels take on the adapter. Measured the first time, then stored.",
    "conformance": "Run ONNX's node tests on the GPU without CPU fallback; count PASS, UNSUPPORTED and FAIL. Exit code "
    "1 if one fails.",
    "compare": "Compare MODEL's outputs on two providers; if they differ, float64 decides. Exit code 0 if the first is "
    "right, else 1.",
    "bisect": "Find the node at which MODEL's values on GPU and CPU begin to differ, and write a small model of it. "
    "Exit code 1 if found.",
    "doctor": "Test the adapter and its driver, in separate processes. Exit code 0 healthy, 1 degraded, 2 unusable "
    "or no adapter.",
    "train": "Train the float32 weights of MODEL on the samples of a .npz file, and write the trained model.",
    "score": "Run MODEL over all rows of DATA on every adapter; write the outputs in order. The same command continues "
    "a killed run.",
    "compress": "Write MODEL with smaller weights. Any ONNX Runtime runs the new file.",
    "exec": "Run COMMAND so that its onnxruntime sessions use the GPU first, also in the Python processes "
    "that it starts.",
    "profile": "Time each dispatch of MODEL on the GPU, compare it with the limits of the adapter, and show what "
    "the host does.",
    "options": "List the options, their defaults and their environment variables.",
}
"""Name of a subcommand, of its module and of its function -> the function's docstring, for the list in the help:
loading them all for it takes a second, since they need numpy, ONNX Runtime and wgpu-native.
"""

WITHOUT_GPU = frozenset({"inspect", "compress", "exec", "options"})

HELP = {"help_option_names": ["-h", "--help"]}


class _Lazy(TyperGroup):
    """Lists the commands without loading them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.commands.get(cmd_name) or (
            TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in COMMANDS:
            from ort_gpu_ep.errors import ConfigError  # not for the help

            try:
                if args[0] not in WITHOUT_GPU:
                    _settle_library(args[0])
                self.commands[args[0]] = command(args[0])
            except ConfigError as error:  # of the library that drives the GPUs, which is loaded with the command
                typer.echo(f"ConfigError: {error}", err=True)
                raise typer.Exit(2) from error
            except (KeyboardInterrupt, ImportError) as error:  # what a command loads takes a second
                from ort_gpu_ep.cli.shared import INTERRUPTED, is_interrupted

                if not is_interrupted(error):
                    raise
                typer.echo("interrupted", err=True)
                raise typer.Exit(INTERRUPTED) from None
        elif near := get_close_matches(args[0], COMMANDS, 1, 0.5):
            ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


def _settle_library(name: str) -> None:
    """Decides which library drives the GPUs, before the command's modules load one. Doctor finds out anew."""
    from ort_gpu_ep.config import resolve
    from ort_gpu_ep.health.libraries import settle

    settle(resolve(), again=name == "doctor" and not {"-h", "--help"} & set(sys.argv))


def command(name: str) -> Any:
    """A subcommand, loaded."""
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    settings = {**HELP, "allow_interspersed_args": name != "exec"}  # what follows a program's name is the program's
    alone.command(name, context_settings=settings)(getattr(import_module(f"ort_gpu_ep.cli.{name}"), name))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Lazy, name="ort-gpu-ep", no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ort-gpu-ep {sys.modules['ort_gpu_ep'].__version__}")
        raise typer.Exit


@app.callback(help="ONNX models on GPUs through Vulkan: run, explain and measure them, and check the driver.")
def _app(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    from ort_gpu_ep.config import unknown_variables  # not for the help

    unknown = list(unknown_variables(os.environ).values())
    for text in unknown:
        typer.echo(f"ConfigError: {text}", err=True)
    if unknown:
        raise typer.Exit(2)
