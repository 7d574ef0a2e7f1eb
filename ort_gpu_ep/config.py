"""Every option, once: provider options, environment variables, files and `ort-gpu-ep` read this table.

Precedence: provider option, then environment variable (ORT_GPU_EP_<NAME>) unless it is empty, then the nearest file,
then the default.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.files import open_regular
from ort_gpu_ep.store import cache_folder

log = logging.getLogger("ort_gpu_ep")

OTHER_VARIABLES = frozenset(("ORT_GPU_EP_DRILL", "ORT_GPU_EP_MODELS"))
"""What drills and the catalogue of models read."""

OF_THE_PROCESS = ("webgpu", "webgpu_library")
"""Options that only the environment can set: a library is loaded once."""

FILES = ("ort-gpu-ep.toml", "pyproject.toml")
"""Looked for in the current folder, then in those above it. The second one's table is [tool.ort-gpu-ep]."""

NOT_IN_FILES = frozenset((*OF_THE_PROCESS, "cache_dir", "quirks", "faults"))
"""Options that no such file sets: they load code, name files, or break runs, and a file may come with a folder that was
downloaded."""

MEMORY_NBYTES = 4 << 30
"""Of a device without memory_limit_mb: nearly every GPU has as much. WebGPU does not tell how much there is."""

_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Option:
    """One option. choices: allowed values, empty for free text; prefix: begins other allowed values, "" for none."""

    name: str
    default: str
    doc: str
    choices: tuple[str, ...] = ()
    prefix: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"ORT_GPU_EP_{self.name.upper()}"

    @property
    def values(self) -> str:
        """What it may be, for a table: the choices, or a type."""
        if self.choices:
            return ", ".join((*self.choices, *((f"{self.prefix}PATH",) if self.prefix else ())))
        return {"int": "integer, 0 or more", "str": "text"}[_kind(self)]


OPTIONS = (
    Option(
        "placement",
        "auto",
        "`auto`: a node goes where it is expected to be faster (on a software adapter: the CPU); `gpu`: "
        "every node that has a kernel goes to the GPU; `cpu`: none does.",
        ("auto", "gpu", "cpu"),
    ),
    Option(
        "placement_budget_ms",
        "500",
        "Time that `placement=auto` may spend on a session's first run to compare its candidates "
        "(all nodes on the CPU, all on the GPU, both), in milliseconds, and as much again later. `0`: no measurement, "
        "prediction only.",
    ),
    Option(
        "strict",
        "0",
        "`1`: raise an exception when the GPU can't do its part (no adapter, a failing partition). `0`: the CPU "
        "answers.",
        ("0", "1"),
    ),
    Option(
        "adapter",
        "",
        "Which GPU: an index into `ort-gpu-ep doctor`'s list, a part of its name, its type (`discrete`, "
        "`integrated`, `software`), its PCI address (`0000:65:00.0`) or its UUID. Empty: discrete before "
        "integrated before "
        "software.",
    ),
    Option(
        "checked_shaders",
        "auto",
        "Bounds checks in shaders. `auto`: where this adapter has not passed the tests without them, "
        "and where data gives the indices; `1`: always; `0`: never.",
        ("auto", "0", "1"),
    ),
    Option(
        "tune",
        "0",
        "`1`: measure which kernels are fastest before a model's first session on this adapter (some seconds; the "
        "result is kept on disk, see docs/tuning.md); `0`: use earlier measurements, else estimates.",
        ("0", "1"),
    ),
    Option(
        "precision",
        "float32",
        "`float32`: as the model says; `f16`: constant weights of products and convolutions are stored "
        "in float16, which halves their device memory; `f16acc`: products also calculate in float16 and sum "
        "every 64 of them "
        "in float32; `tf32`: matrix products and convolutions round their operands to 11 significant bits, for matrix "
        "units (with "
        "Dawn, see docs/precision.md).",
        ("float32", "f16", "f16acc", "tf32"),
    ),
    Option(
        "specialize",
        "auto",
        "`auto`: after 256 runs with equal shapes, a dynamic model gets a plan compiled for those shapes, "
        "in the background, if it takes at most 256 MiB of device memory (or a sixteenth of memory_limit_mb); "
        "rounding may "
        "differ; `off`: never.",
        ("auto", "off"),
    ),
    Option(
        "few_tokens",
        "0",
        "`N`: runs over sequences of exactly N tokens get a plan of their own, as runs over one to four tokens do; all other "
        "lengths share one plan. For programs that verify drafts in passes of 5 to 8 tokens. A `Generator` with a lookahead "
        "sets it.",
    ),
    Option(
        "unit_plans",
        "background",
        "Kernels on matrix units (only with Dawn), which take seconds to compile. `background`: the first "
        "runs use kernels without units, so their digits differ (see docs/precision.md); `wait`: runs wait for them.",
        ("background", "wait"),
    ),
    Option(
        "join_runs",
        "auto",
        "`auto`: concurrent runs of three or more threads are submitted together where that was measured "
        "to be faster (not on software adapters); `1`: always; `0`: never.",
        ("auto", "0", "1"),
    ),
    Option(
        "graph_capture",
        "0",
        "`1`: runs that onnxruntime is asked for again with the same values on the device are replayed past its "
        "executor "
        "(docs/provider-api.md#graph-capture). For programs with onnxruntime's own sessions or its C API, such as "
        "onnxruntime-genai; each node has to be on the GPU.",
        ("0", "1"),
    ),
    Option(
        "weights",
        "auto",
        "Compressed weights that are faster dense. `auto`: a dense copy stays on the device while all of them take "
        "at most 1 GiB (or a quarter of memory_limit_mb), and is given back when memory runs short; `packed`: they are "
        "written out "
        "in each run; `fast`: a dense copy always stays (see docs/packed-weights.md).",
        ("auto", "packed", "fast"),
    ),
    Option(
        "winograd",
        "1",
        "`1`: 3 x 3 convolutions use Winograd's algorithm where it is estimated to be faster; `0`: never. With "
        "Winograd an infinity or NaN can spread to neighbouring outputs.",
        ("0", "1"),
    ),
    Option(
        "rounding",
        "1",
        "`1`: products of a model that lets their vectors be rounded to bytes (MatMulNBits with accuracy_level 4) do that "
        "where it is estimated to be faster; `0`: never.",
        ("0", "1"),
    ),
    Option(
        "fusion", "1", "`0`: no node is fused with another, to find out whether fusion causes a difference.", ("0", "1")
    ),
    Option(
        "memory_limit_mb",
        "0",
        "Device memory that this session may use, in MiB (with isolation=process: all sessions of its "
        "worker together); `0`: the adapter's limit.",
    ),
    Option(
        "health",
        "auto",
        "`auto`: another process loads the drivers first, and tests an adapter (2 s) before its first use and "
        "after a crash; an adapter that fails is not used; `off`: no tests.",
        ("auto", "off"),
    ),
    Option(
        "quirks", "", "A JSON file of driver faults, in addition to those that this package knows (see docs/doctor.md)."
    ),
    Option(
        "hang_timeout_ms",
        "120000",
        "Time after which a GPU that does not answer counts as hung, in milliseconds; `0`: no limit.",
    ),
    Option(
        "verify",
        "0",
        "`N`: compare a partition's result with the CPU's on its first run for each set of shapes, then on one "
        "run in N; `0`: never.",
    ),
    Option(
        "faults",
        "",
        "Faults to inject, for tests: `lost@3,corrupt@5,hang@2,oom@4,compile@1,slow@100x;seed=0`; see docs/faults.md.",
    ),
    Option(
        "load",
        "auto",
        "`auto`: runs move to the CPU while other processes keep the GPU busy, and back; `off`: they stay; "
        "`file:PATH`: read the load from that file, for tests (see docs/load.md).",
        ("auto", "off"),
        "file:",
    ),
    Option(
        "deadline_ms",
        "0",
        "Time that a run may take, in milliseconds: the candidate most likely to meet it is chosen; `0`: "
        "the fastest is chosen.",
    ),
    Option(
        "isolation",
        "none",
        "`process`: a worker process uses the GPU, so that a driver that crashes or hangs ends the worker "
        "and not this process (see docs/faults.md); `none`: no worker.",
        ("none", "process"),
    ),
    Option(
        "webgpu",
        "auto",
        "Which library drives the GPUs: `wgpu` (wgpu-native, which comes with the package), `dawn` (the extra `dawn`, "
        "see docs/decisions/0023-dawn.md), or `auto`: Dawn where it is installed and another process has seen the "
        "adapter's matrix "
        "units work with it. One for all sessions of a process: to be set as an environment variable.",
        ("auto", "wgpu", "dawn"),
    ),
    Option(
        "webgpu_library",
        "",
        "The path of a Dawn library of your own, for `webgpu=dawn`; empty: that of the package wgpudawn, whose "
        "declarations are used for both.",
    ),
    Option("cache_dir", "", "Folder for caches; empty: the user's cache folder."),
)

ROUNDING = ("rounded_product.wgsl", "rounded_matvecs.wgsl", "byte_vectors.wgsl")
"""Kernels that round to bytes the vectors of a product whose model allows it."""

NO_PLAN = frozenset({"load", "cache_dir", "placement_budget_ms", "unit_plans", "graph_capture"})
"""Options that change neither what goes to the GPU, where a session's `placement` is given, nor how."""


@dataclass(frozen=True, slots=True)
class Config:
    """The options of one session, checked."""

    placement: str = "auto"
    placement_budget_ms: int = 500
    strict: bool = False
    adapter: str = ""
    checked_shaders: str = "auto"
    tune: bool = False
    precision: str = "float32"
    specialize: str = "auto"
    few_tokens: int = 0
    unit_plans: str = "background"
    join_runs: str = "auto"
    graph_capture: bool = False
    weights: str = "auto"
    winograd: bool = True
    rounding: bool = True
    fusion: bool = True
    memory_limit_mb: int = 0
    health: str = "auto"
    quirks: str = ""
    hang_timeout_ms: int = 120000
    verify: int = 0
    faults: str = ""
    load: str = "auto"
    deadline_ms: int = 0
    isolation: str = "none"
    webgpu: str = "auto"
    webgpu_library: str = ""
    cache_dir: str = ""

    @property
    def disabled(self) -> tuple[tuple[str, str], ...]:
        """(shader file, why) of the kernels that these options put out of use, as Limits.disabled has them."""
        winograd = () if self.winograd else (("winograd_input.wgsl", "option winograd=0"),)
        rounding = () if self.rounding else tuple((shader, "option rounding=0") for shader in ROUNDING)
        return (*winograd, *rounding)

    @property
    def cache_path(self) -> str:
        """See store.cache_folder."""
        return self.cache_dir or cache_folder()


def resolve(options: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """A Config from provider options, the environment and, where this process's environment counts, the nearest of
    FILES.

    Raises: ConfigError, for a name that is not in the table or a value outside its choices.
    """
    file, in_file = _nearest_file() if environment is None else ("", {})
    environment = os.environ if environment is None else environment
    _warn_of_unknown(environment)
    texts = {str(k): _text(v) for k, v in (options or {}).items()}
    for name in texts:
        _check_known(name, f"provider option {name!r}")
    values: dict[str, object] = {}
    for option in OPTIONS:
        from_environment = environment.get(option.variable)
        usual = text = from_environment or in_file.get(option.name, option.default)
        source = f"environment variable {option.variable}" if from_environment else f"{file}: {option.name}"
        if option.name in texts:
            source, text = f"provider option {option.name!r}", texts[option.name]
        values[option.name] = _parse(option, text, source)
        if option.name in OF_THE_PROCESS and text not in (usual, option.default):
            raise ConfigError(
                f"provider option {option.name!r} is {text!r}, but one library drives the GPUs for all sessions of a "
                f"process: set the environment variable {option.variable} before it starts."
            )
    return Config(**values)  # type: ignore[arg-type]


def _check_known(name: str, what: str) -> None:
    names = [option.name for option in OPTIONS]
    if name not in names:
        near = get_close_matches(name, names, 1)
        raise ConfigError(
            f"{what} is unknown" + (f"; did you mean {near[0]!r}?" if near else ".") + f" Known: {', '.join(names)}."
        )


def _nearest_file() -> tuple[str, Mapping[str, str]]:
    try:
        return file_above(os.getcwd())
    except OSError:  # the folder was deleted
        return "", {}


@cache
def file_above(folder: str) -> tuple[str, Mapping[str, str]]:
    """The nearest file with options, and these; read once in a process. Raises ConfigError for one with other
    content."""
    for place in (Path(folder), *Path(folder).parents):
        for name in FILES:
            table = _table(place / name)
            if table is not None:
                return str(place / name), {
                    str(key): _of_file(str(place / name), str(key), value) for key, value in table.items()
                }
    return "", {}


def _table(path: Path) -> Mapping[str, object] | None:
    """The options of a file, None where it has none. Raises ConfigError for a file that is no TOML."""
    try:
        with open_regular(path, follow=True) as file:
            status, data = os.fstat(file.fileno()), file.read(1 << 20)
    except OSError:  # there is none, or not for this user
        return None
    is_own = path.name == FILES[0]
    if not is_own and b"tool.ort-gpu-ep" not in data:
        return None
    if hasattr(os, "geteuid") and (status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH):
        log.warning("%s is ignored: it belongs to another user, or others may write to it", path)
        return None
    import tomllib  # most programs have no such file

    try:
        content = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; expected TOML") from error
    tools = content.get("tool")
    table = content if is_own else tools.get("ort-gpu-ep") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.ort-gpu-ep: got {table!r}, expected a table")
    return table


def _of_file(file: str, name: str, value: object) -> str:
    """The text of an option in a file. Raises ConfigError for one that files do not set."""
    _check_known(name, f"{file}: option {name!r}")
    prefix = next(option.prefix for option in OPTIONS if option.name == name)
    if name in NOT_IN_FILES or (prefix and str(value).startswith(prefix)):
        raise ConfigError(
            f"{file}: {name}: this is set by the program or by ORT_GPU_EP_{name.upper()} alone, since a "
            f"folder that was "
            "downloaded may have such a file"
        )
    if not isinstance(value, (str, int)):
        raise ConfigError(f"{file}: {name}: got {value!r}, expected a text, a whole number, true or false")
    return _text(value)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Each variable that looks like an option's and is none -> what to say of it."""
    names = sorted({o.variable for o in OPTIONS} | OTHER_VARIABLES)
    unknown = {}
    for name in environment:
        if name.startswith("ORT_GPU_EP_") and name not in names:
            near = get_close_matches(name, names, 1)
            unknown[name] = f"environment variable {name} is no option and has no effect" + (
                f"; did you mean {near[0]}?" if near else ""
            )
    return unknown


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    """Says it once of each: a program that uses this package goes on."""
    for name, text in unknown_variables(environment).items():
        if name not in _warned:
            _warned.add(name)
            log.warning("%s", text)


def variables(options: Mapping[str, object]) -> dict[str, str]:
    """The environment variables that set these options. Raises: ConfigError, as `resolve`."""
    resolve(options, {})
    return {o.variable: _text(options[o.name]) for o in OPTIONS if o.name in options}


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _kind(option: Option) -> str:
    """The type of the field of Config that holds it."""
    return str({f.name: f.type for f in fields(Config)}[option.name])


def _parse(option: Option, text: str, source: str) -> object:
    if option.choices and text not in option.choices and not (option.prefix and text.startswith(option.prefix)):
        more = f" or {option.prefix}..." if option.prefix else ""
        raise ConfigError(f"{source}: got {text!r}, expected one of {', '.join(option.choices)}{more}.")
    kind = _kind(option)
    if kind == "bool":
        return text == "1"
    if kind == "int":
        if not text.isdigit():
            raise ConfigError(f"{source}: got {text!r}, expected a whole number of at least 0.")
        return int(text)
    return text
