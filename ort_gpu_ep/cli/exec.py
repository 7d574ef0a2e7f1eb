"""ort-gpu-ep exec: run another program with this provider in its sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Annotated

import typer

from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import resolve
from ort_gpu_ep.processes.children import announcement, hooked

NOT_FOUND = 127
"""What a shell gives as the exit code of a command that is not there."""


@shared.reports_errors
def exec(
    command: Annotated[
        list[str], typer.Argument(help="The program and its arguments, best after `--`.", show_default=False)
    ],
    option: shared.OptionOption = None,
) -> None:
    """Run COMMAND so that its onnxruntime sessions use the GPU first, also in the Python processes that it starts."""
    variables = hooked(shared.pairs(option, "--option"), os.environ)
    environment = {**os.environ, **variables}
    placement = resolve({}, environment).placement
    program = command[0]
    print(f"ort-gpu-ep: {announcement(placement)}", file=sys.stderr, flush=True)
    try:
        if sys.platform == "win32":  # there a program that replaces another one does not keep its process id
            raise typer.Exit(subprocess.run(command, env=environment).returncode)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; a program would inherit that
            signal.signal(ignored, signal.SIG_DFL)
        os.execvpe(program, command, environment)
    except FileNotFoundError:
        shared.err.print(f"{program}: no such program in PATH", soft_wrap=True)
        raise typer.Exit(NOT_FOUND) from None
