"""Code that the subcommands share: opening a session, common options, errors, JSON."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeAlias

import typer
from rich.console import Console
from rich.text import Text

from ort_gpu_ep.errors import AdapterError, GpuEpError, ModelError
from ort_gpu_ep.ir.refused import add_remedy, remedy
from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.providers import CPU_PROVIDER
from ort_gpu_ep.terminal import printable

P = ParamSpec("P")
Texts: TypeAlias = Sequence[str] | None


class Terminal(Console):
    """Shows a str as one line of text, whatever is in it: names come from models. Of what has lines or colours a Text
    is made before."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """What rich makes of each str: also of a cell, and of a title."""
        return super().render_str(printable(text), **settings)


out = Terminal()
err = Terminal(stderr=True)

SCHEMA = 1
"""Of what --json prints: it grows when a key goes or changes its meaning."""

INTERRUPTED = 128 + signal.SIGINT
"""What a shell gives as the exit code of a command that SIGINT ended."""

ModelArgument = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
InputOption = Annotated[
    list[str] | None, typer.Option("--input", help="NAME=FILE (.npy, image, .txt) or NAME=NUMBER; default: random.")
]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE; `ort-gpu-ep options` lists them.")
]
SizeOption = Annotated[
    list[str] | None, typer.Option("--dim", help="SYMBOL=SIZE for a dimension that the model leaves open.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="INPUT=SIZExSIZE..., for dimensions without a name.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the random inputs.")]


PICTURES = (".png", ".svg")
"""Suffixes of pictures that commands draw."""


def file_to_write(flag: str, help: str, suffixes: Sequence[str] = (), **settings: Any) -> Any:
    """The option of a file that a command writes, in a folder that exists: checked before any work. suffixes: one of
    them is expected."""

    def file(path: Path | None) -> Path | None:  # typer reads a callback's annotations, which partial() has none of
        return _writable_file(path, suffixes)

    return typer.Option(flag, help=help, callback=file, **settings)


def folder_to_write(flag: str, help: str, suffixes: Sequence[str] = (), **settings: Any) -> Any:
    """The option of a folder that a command makes together with the folders above it. suffixes: of a file that may be
    named instead."""

    def folder(path: Path | None) -> Path | None:
        return _writable_folder(path, suffixes)

    return typer.Option(flag, help=help, callback=folder, **settings)


def _writable_file(path: Path | None, suffixes: Sequence[str]) -> Path | None:
    if path is not None:
        _check_name(path)
        if suffixes and path.suffix.lower() not in suffixes:
            raise typer.BadParameter(f"{path}: expected a file name that ends in {' or '.join(suffixes)}")
        if path.is_dir():
            raise typer.BadParameter(f"{path} is a folder; expected a file")
        if not path.parent.is_dir():
            raise typer.BadParameter(f"the folder {path.parent} does not exist: make it first, or choose another one")
        _check_writable(path if path.exists() else path.parent)
    return path


def _writable_folder(path: Path | None, suffixes: Sequence[str]) -> Path | None:
    if path is not None:
        _check_name(path)
        if suffixes and path.suffix and path.suffix.lower() not in suffixes and not path.is_dir():
            raise typer.BadParameter(f"{path}: expected a folder, or a file name that ends in {' or '.join(suffixes)}")
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
        if there != path and not there.is_dir():
            raise typer.BadParameter(f"{there} is no folder, so that nothing can be made in it")
        _check_writable(there)
    return path


def _check_name(path: Path) -> None:
    """`=` in a file's name is an option in the wrong place: `--out placement=gpu`; `-` would be a file of that name."""
    if "=" in path.name:
        raise typer.BadParameter(f"{path}: names of output files may not contain '='")
    if str(path) == "-":
        raise typer.BadParameter("-: expected a file name; --json prints to the standard output")


def _check_writable(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise typer.BadParameter(f"{path} may not be written to: choose another place, or change its permissions")


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Prints what this package or onnxruntime rejects as one message and exits with 1; bugs keep their traceback.
    Ctrl-C: INTERRUPTED."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with acknowledged():
                command(*args, **kwargs)
        except (GpuEpError, ValueError, OSError) as error:
            _say_error(error)
            raise typer.Exit(1) from error
        except Exception as error:
            if is_interrupted(error):
                err.print("interrupted")
                raise typer.Exit(INTERRUPTED) from None
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            _say_error(error)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            err.print("interrupted")
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


def is_interrupted(error: BaseException | None) -> bool:
    """Whether a Ctrl-C is behind an error: a module in C whose import it ends says that it could not be initialised."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def acknowledged() -> Iterator[None]:
    """Says that a Ctrl-C has come while what goes on in C, as compiling a kernel, is not over: before, Python does not
    handle it. No kernel is compiled after it.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts.ending.clear()  # of a command before it in this process
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    over, log = threading.Event(), logging.getLogger("ort_gpu_ep")
    level = log.level

    def tell() -> None:
        if signal.SIGINT not in os.read(source, 1):
            return
        interrupts.ending.set()
        log.setLevel(logging.CRITICAL)  # what was not compiled is no news
        if not over.wait(0.2):  # what is over sooner needs no word
            sys.stderr.write("Ctrl-C: this ends when the kernel or run that goes on is over\n")
            sys.stderr.flush()

    thread = threading.Thread(target=tell, name="ort_gpu_ep-ctrl-c", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        over.set()
        with suppress(BlockingIOError):  # the pipe is full of other signals, which end the thread, too
            os.write(sink, b"\0")
        thread.join()
        log.setLevel(level)
        os.close(source)
        os.close(sink)


def _say_error(error: Exception) -> None:
    """Its further lines are indented: none of them looks like one that a command begins."""
    text = "\n".join((str(error), *getattr(error, "__notes__", ())))
    err.print(Text.assemble((type(error).__name__, "red"), ": ", lines(text.replace("\n", "\n  "))), soft_wrap=True)


def lines(text: str) -> Text:
    """A text of ours that has several; names in it are printable already."""
    return Text("\n".join(map(printable, text.split("\n"))))


def pairs(texts: Texts, what: str) -> dict[str, str]:
    """NAME=VALUE texts as a dict. Raises ModelError for a text without `=`."""
    parsed = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ModelError(f"{what} {text!r}: expected NAME=VALUE")
        parsed[name] = value
    return parsed


def open_session(
    model: Path,
    options: Mapping[str, str],
    tell: bool = True,
    sizes: Mapping[str, int] | None = None,
    data: bytes | None = None,
) -> Any:
    """The drop-in session of a model file, with onnxruntime's own warnings off (a partial assignment is no news here).

    tell: says on a terminal that it goes on; not below another display. sizes: of open dimensions, which the session
    then has fixed. data: the model itself, where it is to be another one than the file's, whose external data it reads.
    """
    check_file(model)
    with waiting(f"loading {model.name}: planning, compiling") if tell else nullcontext():
        from ort_gpu_ep.session.opening import EXTERNAL_FOLDER
        from ort_gpu_ep.session.session import InferenceSession

        settings = quiet()
        if data is not None:
            settings.add_session_config_entry(EXTERNAL_FOLDER, str(model.absolute().parent))
        for symbol, size in (sizes or {}).items():
            settings.add_free_dimension_override_by_name(symbol, size)
        session = InferenceSession(
            str(model) if data is None else data, settings, provider_options={"unit_plans": "wait", **options}
        )
        session.wait_ready()  # what a command shows of its runs is of those that chose
        return session


def check_file(model: Path) -> None:
    """Raises ModelError where there is no file to open."""
    if not model.is_file():
        raise ModelError(f"{model}: {'a folder, expected a model file' if model.is_dir() else 'there is no such file'}")


def waiting(what: str) -> Any:
    """A line on stderr, where that is a terminal, for what may take over a second and has no parts to count."""
    return err.status(Text(printable(what))) if err.is_terminal else nullcontext()


def check_gpu(session: Any) -> None:
    """Raises AdapterError for a session that was to use the GPU (placement=gpu) and has none."""
    if session.missing_gpu:
        raise AdapterError(f"placement=gpu, but: {session.missing_gpu}")


def quiet() -> Any:
    import onnxruntime  # only here: `ort-gpu-ep exec` needs neither it nor numpy

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # what goes wrong is raised as well, and said in our words
    return settings


def cpu_session(model: Path | str) -> Any:
    """A plain session of onnxruntime's on its CPU provider."""
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(str(model), quiet(), providers=[CPU_PROVIDER])
    except Exception as error:
        add_remedy(error, partial(remedy, model))
        raise


@contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr, where that is a terminal, for what takes over a second: tell it what comes next and the part
    that is done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda text, part: bar.update(task, completed=part, description=printable(f"{what}: {text}"))


def print_json(data: Mapping[str, Any]) -> None:
    """With the version of its keys. What JSON has no numbers for is text: "NaN", "Infinity", "-Infinity"."""
    json.dump(_finite({"schema": SCHEMA, **data}), sys.stdout, indent=1, default=str, allow_nan=False)
    sys.stdout.write("\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
