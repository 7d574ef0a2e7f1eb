"""What the subcommands share: opening a session, inputs, errors, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape

from ort_gpu_ep.errors import AdapterError, GpuEpError, ModelError

if TYPE_CHECKING:
    import numpy as np

P = ParamSpec("P")

out = Console()
err = Console(stderr=True)

INTERRUPTED = 130
"""What a shell gives as the exit code of a command that SIGINT ended: 128 + 2."""

ModelArgument = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
InputOption = Annotated[list[str] | None, typer.Option("--input", help="NAME=FILE.npy; random values for inputs not given.")]
OptionOption = Annotated[list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE, an option of `ort-gpu-ep options`.")]
SizeOption = Annotated[list[str] | None, typer.Option("--dim", help="SYMBOL=SIZE for a dynamic dimension (default 1).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the random inputs.")]

_NUMPY = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64", "tensor(bool)": "bool",
          **{f"tensor({t})": t for t in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")}}


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


def pairs(texts: Sequence[str] | None, what: str) -> dict[str, str]:
    """NAME=VALUE texts as a dict. Raises ModelError for a text without `=`."""
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ModelError(f"{what} {text!r}: expected NAME=VALUE")
        found[name] = value
    return found


def open_session(model: Path, options: Mapping[str, str]) -> Any:
    """The drop-in session of a model file, with onnxruntime's own warnings off (a partial assignment is no news here)."""
    from ort_gpu_ep.session import InferenceSession

    return InferenceSession(str(model), quiet(), provider_options=options)


def check_gpu(session: Any) -> None:
    """Raises AdapterError for a session that was to use the GPU (placement=gpu) and has none."""
    if session.missing_gpu:
        raise AdapterError(f"placement=gpu, but: {session.missing_gpu}")


def quiet() -> Any:
    import onnxruntime  # only here: `ort-gpu-ep exec` needs neither it nor numpy

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    return settings


def feeds(session: Any, given: Mapping[str, str], sizes: Mapping[str, str], seed: int) -> dict[str, Any]:
    """An array for each input: from its .npy file, else random. Raises ModelError for a name the model does not have."""
    import numpy as np

    names = [i.name for i in session.get_inputs()]
    for name in given:
        if name not in names:
            raise ModelError(f"--input {name}: the model has no such input; it has {', '.join(names)}")
    rng = np.random.default_rng(seed)
    found = {}
    for value in session.get_inputs():
        if value.name in given:
            found[value.name] = np.load(given[value.name], allow_pickle=False)
        else:
            found[value.name] = _random(value, sizes, rng)
    return found


def _random(value: Any, sizes: Mapping[str, str], rng: np.random.Generator) -> Any:
    if value.type not in _NUMPY:
        raise ModelError(f"input {value.name!r} is a {value.type}: no random values for that; give --input {value.name}=FILE.npy")
    import numpy as np

    shape = [d if isinstance(d, int) and d > 0 else int(sizes.get(str(d), 1)) for d in value.shape]
    dtype = np.dtype(_NUMPY[value.type])
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def print_json(data: object) -> None:
    json.dump(data, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")
