"""What the subcommands share: opening a session, inputs, errors, JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape

from ort_gpu_ep.errors import AdapterError, GpuEpError, ModelError
from ort_gpu_ep.providers import CPU_PROVIDER

P = ParamSpec("P")
Texts: TypeAlias = Sequence[str] | None

out = Console()
err = Console(stderr=True)

SCHEMA = 1
"""Of what --json prints: it grows when a key goes or changes its meaning."""

INTERRUPTED = 130
"""What a shell gives as the exit code of a command that SIGINT ended: 128 + 2."""

ModelArgument = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
InputOption = Annotated[list[str] | None, typer.Option("--input", help="NAME=FILE.npy; random values for inputs not given.")]
OptionOption = Annotated[list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE, an option of `ort-gpu-ep options`.")]
SizeOption = Annotated[list[str] | None, typer.Option("--dim", help="SYMBOL=SIZE for a dynamic dimension (default 1).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ShapeOption = Annotated[list[str] | None, typer.Option("--shape", help="INPUT=SIZExSIZE..., for sizes without a name (default 1).")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the random inputs.")]


def file_to_write(flag: str, help: str, *more: str, **settings: Any) -> Any:
    """The option of a file that a command writes, in a folder that is there: looked at before any work. more: other names of the flag."""
    return typer.Option(flag, *more, help=help, callback=_writable_file, **settings)


def folder_to_write(flag: str, help: str, *more: str, **settings: Any) -> Any:
    """The option of what a command makes together with the folders above it."""
    return typer.Option(flag, *more, help=help, callback=_writable_folder, **settings)


def _writable_file(path: Path | None) -> Path | None:
    if path is not None:
        if path.is_dir():
            raise typer.BadParameter(f"{path} is a folder; expected a file")
        if not path.parent.is_dir():
            raise typer.BadParameter(f"the folder {path.parent} does not exist: make it first, or choose another one")
        _check_writable(path if path.exists() else path.parent)
    return path


def _writable_folder(path: Path | None) -> Path | None:
    if path is not None:
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
        if there != path and not there.is_dir():
            raise typer.BadParameter(f"{there} is no folder, so that nothing can be made in it")
        _check_writable(there)
    return path


def _check_writable(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise typer.BadParameter(f"{path} may not be written to: choose another place, or change its permissions")


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Prints what this package or onnxruntime rejects as one message and exits with 1; bugs keep their traceback. Ctrl-C: INTERRUPTED."""
    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (GpuEpError, ValueError, OSError) as error:
            err.print(f"[red]{type(error).__name__}[/red]: {escape(str(error))}", highlight=False)
            raise typer.Exit(1) from error
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            err.print(f"[red]{type(error).__name__}[/red]: {escape(str(error))}", highlight=False)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            err.print("interrupted")
            raise typer.Exit(INTERRUPTED) from None
    return wrapped


def pairs(texts: Texts, what: str) -> dict[str, str]:
    """NAME=VALUE texts as a dict. Raises ModelError for a text without `=`."""
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ModelError(f"{what} {text!r}: expected NAME=VALUE")
        found[name] = value
    return found


def open_session(model: Path, options: Mapping[str, str], tell: bool = True) -> Any:
    """The drop-in session of a model file, with onnxruntime's own warnings off (a partial assignment is no news here).

    tell: says on a terminal that it goes on; not below another display.
    """
    with waiting(f"loading {model.name}: planning, compiling") if tell else nullcontext():
        from ort_gpu_ep.session import InferenceSession

        return InferenceSession(str(model), quiet(), provider_options=options)


def waiting(what: str) -> Any:
    """A line on stderr, where that is a terminal, for what may take over a second and has no parts to count."""
    return err.status(escape(what)) if err.is_terminal else nullcontext()


def check_gpu(session: Any) -> None:
    """Raises AdapterError for a session that was to use the GPU (placement=gpu) and has none."""
    if session.missing_gpu:
        raise AdapterError(f"placement=gpu, but: {session.missing_gpu}")


def quiet() -> Any:
    import onnxruntime  # only here: `ort-gpu-ep exec` needs neither it nor numpy

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    return settings


def cpu_session(model: Path | str) -> Any:
    """A plain session of onnxruntime's on its CPU provider."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(model), quiet(), providers=[CPU_PROVIDER])


def feeds(
    session: Any, inputs: Texts, dims: Texts, shape_texts: Texts, seed: int,
) -> dict[str, Any]:
    """An array for each input, by the options --input, --dim and --shape: from its .npy file, else random, with these sizes or shapes.

    Raises ModelError for a text without `=`, a name that the model does not have, a shape that does not fit, and another file.
    """
    import numpy as np

    from ort_gpu_ep.feeds import array_in, random_value

    given, sizes, shapes = pairs(inputs, "--input"), pairs(dims, "--dim"), pairs(shape_texts, "--shape")
    names = [i.name for i in session.get_inputs()]
    symbols = list(dict.fromkeys(d for i in session.get_inputs() for d in i.shape if isinstance(d, str)))
    _known(given, names, "--input", "input")
    _known(shapes, names, "--shape", "input")
    _known(sizes, symbols, "--dim", "named size")
    numbers = {name: _size(name, text) for name, text in sizes.items()}
    rng = np.random.default_rng(seed)
    found = {}
    for value in session.get_inputs():
        if value.name in given:
            found[value.name] = array_in(given[value.name], f"--input {value.name}")
        else:
            found[value.name] = random_value(value, _shape(value, numbers, shapes.get(value.name, "")), rng)
    return found


def _known(given: Iterable[str], there: Sequence[str], what: str, kind: str) -> None:
    """Raises ModelError for a name that is not there."""
    for name in given:
        if name not in there:
            near = get_close_matches(name, there, 1)
            raise ModelError(f"{what} {name}: the model has no such {kind}; it has {', '.join(there) or 'none'}" +
                             (f". Did you mean {near[0]!r}?" if near else ""))


def _size(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ModelError(f"--dim {name}={text}: expected a whole number")
    return int(text)


def _shape(value: Any, sizes: Mapping[str, int], text: str) -> list[int]:
    """The shape of an input: what the model fixes, then what is given for this input, or for its dimensions; else 1.

    Raises ModelError, for text that is no shape or another one than the model's.
    """
    from ort_gpu_ep.feeds import own_shape

    own = own_shape(value, sizes)
    if not text:
        return own
    parts = text.split("x")
    fits = len(parts) == len(own) and all(p.isdecimal() for p in parts)
    if not fits or any(isinstance(d, int) and d > 0 and d != int(p) for d, p in zip(value.shape, parts, strict=True)):
        wanted = "x".join(str(d or "?") for d in value.shape)
        raise ModelError(f"--shape {value.name}={text}: expected sizes like 1x576 that fit the model's {wanted}")
    return [int(p) for p in parts]


@contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr, where that is a terminal, for what takes over a second: tell it what comes next and the part that is done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda text, part: bar.update(task, completed=part, description=escape(f"{what}: {text}"))


def print_json(data: Mapping[str, Any]) -> None:
    """With the version of its keys."""
    json.dump({"schema": SCHEMA, **data}, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")
