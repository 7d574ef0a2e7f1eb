"""Compiles kernels with the real compilers of GPUs that are not here, and tells what their drivers say: no GPU, no
result computed.

    sh scripts/compilers.sh                                                 sets up the drivers: once, 3 minutes
    sh scripts/arm64.sh                                                     those of ARM and Broadcom, which Debian has for 64-bit ARM only
    python -m benchmarks.compilers [DRIVER[/FAMILY] ...] [--sample N] [--changed COMMIT] [--json FILE] [--record]

The texts are those of benchmarks.replay and of hot nodes at their real sizes, as a session chooses and composes them
for the limits that each adapter reports, with naga's checks and without. Each driver and family has a process, so a
crash of a compiler is a row of the table. Registers, spills and waves are what the driver tells by
VK_KHR_pipeline_executable_properties. compilers_expected.txt lists what may fail or spill, with a reason for each line;
exit code 1 if anything else does, and without a selection also if none of a line does.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import onnx
import typer
from onnx import helper, numpy_helper
from rich.table import Table

from benchmarks import layer, replay, sides
from benchmarks.problems import IN_FORMS, TILED, graph_of
from ort_gpu_ep.errors import GpuEpError
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.kernels.cost_parameters import figures_for
from ort_gpu_ep.kernels.target import DEFAULT_LIMITS, SHOWN_FEATURES, Limits

ROOT = Path(__file__).resolve().parents[1]
FOLDER, ARM64 = ROOT / ".compilers", ROOT / ".arm64"
EXPECTED = Path(__file__).with_name("compilers_expected.txt")
RECORD = Path(__file__).with_suffix(".json")


# ---- drivers


@dataclass(frozen=True)
class Driver:
    """suites: of Debian, the newest first; none for a driver of 64-bit ARM, which qemu runs: its times are several
    times a machine's. chosen_by: the variable that names the GPU that the shim fakes. families: its values -> GPU.
    """

    suites: tuple[str, ...]
    manifest: str
    shim: str
    chosen_by: str
    families: Mapping[str, str]


DRIVERS: Mapping[str, Driver] = {
    "radv": Driver(
        ("sid", "trixie"),
        "radeon",
        "amdgpu",
        "AMDGPU_GPU_ID",
        {
            "polaris10": "AMD RX 480",
            "vega10": "AMD RX Vega 64",
            "navi21": "AMD RX 6800",
            "navi31": "AMD RX 7900",
            "gfx1201": "AMD RX 9070",
        },
    ),
    "anv": Driver(
        ("sid", "trixie"),
        "intel",
        "intel",
        "INTEL_STUB_GPU_PLATFORM",
        {
            "skl": "Intel UHD 6xx",
            "tgl": "Intel Iris Xe",
            "dg2": "Intel Arc A770",
            "lnl": "Intel Arc 140V",
            "bmg": "Intel Arc B580",
        },
    ),
    "hasvk": Driver(("sid", "trixie"), "intel_hasvk", "intel", "INTEL_STUB_GPU_PLATFORM", {"bdw": "Intel HD 5500"}),
    "turnip": Driver(
        ("sid",),
        "freedreno",
        "freedreno",
        "FD_GPU_ID",
        {"630": "Qualcomm Adreno 630", "730": "Qualcomm Adreno 730", "750": "Qualcomm Adreno 750"},
    ),
    "honeykrisp": Driver(("sid",), "asahi", "asahi", "ASAHI_GPU", {"m1": "Apple M1"}),
    "nvk": Driver(
        ("sid", "trixie"),
        "nouveau",
        "nouveau",
        "NOUVEAU_CHIPSET",
        {"172": "NVIDIA GA102 by NVK", "192": "NVIDIA AD102 by NVK"},
    ),
    "panvk": Driver((), "panfrost", "panfrost", "PAN_GPU_ID", {"a867": "Arm Mali-G610", "ac74": "Arm Mali-G310"}),
    "v3dv": Driver(
        (), "broadcom", "v3d", "V3D_GPU_ID", {"42": "Raspberry Pi 4 (V3D 4.2)", "71": "Raspberry Pi 5 (V3D 7.1)"}
    ),
}
HERE = "here"
"""The driver of this machine's own that a session would take: lavapipe, or a GPU's."""


@dataclass(frozen=True)
class Place:
    """A driver and a family: the command of the process, and its variables. target: of the layer, see layer.build."""

    name: str
    gpu: str
    command: tuple[str, ...] = (sys.executable, "-m", "benchmarks.compilers_process")
    environment: Mapping[str, str] = field(default_factory=dict)
    target: str = ""


def places(wanted: Sequence[str] = ()) -> list[Place]:
    """What is set up here of `driver` or `driver/family`; all that is, and the machine's own driver if nothing is,
    where none are named.

    Raises typer.BadParameter.
    """
    names = [f"{name}/{family}" for name, driver in DRIVERS.items() for family in driver.families]
    unknown = [each for each in wanted if each not in (*DRIVERS, *names, HERE)]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]}: expected {HERE}, or of {', '.join(names)}")
    chosen = [
        _place(*name.split("/")) for name in names if not wanted or name in wanted or name.split("/")[0] in wanted
    ]
    missing = [place for place in chosen if isinstance(place, str)]
    found = [place for place in chosen if isinstance(place, Place)]
    if wanted and missing:
        raise typer.BadParameter(missing[0])
    return found + ([Place(HERE, "this machine's")] if HERE in wanted or not chosen or not (found or wanted) else [])


def _place(name: str, family: str) -> Place | str:
    """Or what is missing for it."""
    driver = DRIVERS[name]
    if not driver.suites:
        python = ARM64 / "python"
        if not python.exists():
            return f"{name}/{family} is not in {ARM64}: sh scripts/arm64.sh sets it up"
        variables = {
            driver.chosen_by: family,
            "ARM64_DRIVER": driver.manifest,
            "ARM64_SHIM": f"lib{driver.shim}_noop_drm_shim.so",
        }
        return Place(
            f"{name}/{family}",
            driver.families[family],
            (str(python), *Place.command[1:]),
            variables,
            "aarch64-linux-gnu",
        )
    for suite in driver.suites:
        library = FOLDER / suite / "usr" / "lib" / "x86_64-linux-gnu"
        manifest = FOLDER / suite / "usr" / "share" / "vulkan" / "icd.d" / f"{driver.manifest}_icd.json"
        shim = next(
            (
                path
                for path in (
                    library / f"lib{driver.shim}_noop_drm_shim.so",
                    FOLDER / f"lib{driver.shim}_noop_drm_shim.so",
                )
                if path.exists()
            ),
            None,
        )
        if manifest.exists() and shim is not None:
            break
    else:
        return f"{name}/{family} is not in {FOLDER}: sh scripts/compilers.sh sets it up"
    # The suite's own loader and C library run this Python: drivers that are newer than this machine's C library load no
    # other way.
    loader = FOLDER / suite / "usr" / "lib64" / "ld-linux-x86-64.so.2"
    python = ("--argv0", sys.executable, os.path.realpath(sys.executable), *Place.command[1:])
    command = (str(loader), "--library-path", str(library), "--preload", str(shim), *python)
    return Place(
        f"{name}/{family}",
        driver.families[family],
        command,
        {
            driver.chosen_by: family,
            "VK_DRIVER_FILES": str(manifest),
            "VK_ICD_FILENAMES": str(manifest),
            "LD_LIBRARY_PATH": "",
        },
    )


# ---- texts


def hot_graphs() -> Iterator[tuple[str, Graph]]:
    """Nodes where the time of networks and of language models goes, at their sizes."""
    for name, row in {**IN_FORMS, **TILED}.items():
        yield f"hot/{name}", graph_of(row)
    for size in (64, 128):
        for tokens, past in ((1, 1023), (4, 1020), (128, 0)):
            yield (
                f"hot/GroupQueryAttention of {size}, {tokens} behind {past}",
                from_onnx(_group_query_attention(tokens, past, size)),
            )
    for rows in (1, 4, 128):
        for bits in (4, 8):
            yield f"hot/MatMulNBits {bits} bits, {rows} rows", from_onnx(_packed_product(rows, bits))


def _tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def _model(
    node: onnx.NodeProto, inputs: Sequence[Any], outputs: Sequence[Any], constants: Sequence[Any]
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "hot", inputs, outputs, constants), opset_imports=opsets)


def _group_query_attention(tokens: int, past: int, size: int, heads: int = 32, groups: int = 8) -> onnx.ModelProto:
    total = past + tokens
    inputs = [
        _tensor("q", 1, tokens, heads * size),
        _tensor("k", 1, tokens, groups * size),
        _tensor("v", 1, tokens, groups * size),
        _tensor("past_k", 1, groups, past, size),
        _tensor("past_v", 1, groups, past, size),
    ]
    outputs = [
        _tensor("y", 1, tokens, heads * size),
        _tensor("all_k", 1, groups, total, size),
        _tensor("all_v", 1, groups, total, size),
    ]
    constants = [
        numpy_helper.from_array(np.array([n], np.int32), name) for name, n in (("last", total - 1), ("total", total))
    ]
    node = helper.make_node(
        "GroupQueryAttention",
        [*(i.name for i in inputs), "last", "total"],
        [o.name for o in outputs],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=groups,
    )
    return _model(node, inputs, outputs, constants)


def _packed_product(rows: int, bits: int, k: int = 4096, n: int = 4096, block: int = 32) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.integers(0, 255, (n, k // block, block * bits // 8), np.uint8), "b"),
        numpy_helper.from_array(rng.random((n, k // block), np.float32), "scales"),
    ]
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "scales"], ["y"], domain="com.microsoft", K=k, N=n, bits=bits, block_size=block
    )
    return _model(node, [_tensor("x", rows, k)], [_tensor("y", rows, n)], constants)


def case_names(select: str) -> list[str]:
    names = [name for cases in (replay.sources(select), hot_graphs()) for name, _ in cases]
    return [name for name in names if re.search(select, name)]


def composed(names: frozenset[str], select: str, limits: Limits) -> dict[str, tuple[str, str]]:
    """Hash -> (the first case that has it, text), for an adapter."""
    kernels, texts = replay.replayed(select, 1, {"": limits}, names)
    found: dict[str, tuple[str, str]] = {}
    for case, by_limits in kernels.items():
        for digest in by_limits[""]:
            found.setdefault(digest, (case, texts[digest]))
    for case, graph in hot_graphs() if any(name.startswith("hot/") for name in names) else ():
        if case in names:
            try:
                hot = replay.kernel_texts(graph, {}, limits)
            except GpuEpError:
                continue  # declined
            for text in hot:
                found.setdefault(sha256(text.encode()).hexdigest()[: replay.HASH_DIGITS], (case, text))
    return found


def changed_since(commit: str) -> set[str]:
    """Cases whose texts replay.txt records otherwise than a commit's. Raises typer.BadParameter."""
    name = replay.RECORDED.relative_to(ROOT)
    done = subprocess.run(["git", "show", f"{commit}:{name}"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise typer.BadParameter(f"{commit}: no commit with {name}: {done.stderr.strip()}")
    return {case for case, _ in replay.changes(replay.kernels_of(done.stdout.splitlines()), replay.recorded())}


def limits_of(told: Mapping[str, Any]) -> Limits:
    """Those of a session on this adapter after all probes have shown right results, not measured."""
    limits = told["limits"] | {
        "features": frozenset(told["limits"]["features"]) | SHOWN_FEATURES,
        "max_loop_iterations": 1 << 40,
    }
    return replace(DEFAULT_LIMITS, **limits, figures=figures_for(told["kind"], None, told["compiler"]))


# ---- compiling


@dataclass
class Row:
    """What became of a text. outcome: compiled, refused (by wgpu or the driver), crashed, or late. ms: CPU time of the
    driver's compiler. The others are what drivers tell, None where one does not: of an invocation, registers of 32 bits
    and what of them is spilled to memory (on Adreno and Apple: instructions that do that), and bytes of scratch; of a
    workgroup, bytes of its memory; waves: subgroups at once of a SIMD (AMD), a core (Adreno, Apple), an SM (NVIDIA);
    cycles: the compiler's own estimate.
    """

    place: str
    digest: str
    case: str
    shader: str
    trusted: bool
    outcome: str
    ms: float = 0.0
    why: str = ""
    registers: int | None = None
    spills: int | None = None
    scratch: int | None = None
    workgroup: int | None = None
    waves: int | None = None
    subgroup: int | None = None
    cycles: int | None = None


STATISTICS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "registers": (("VGPRs", 1), ("Registers used", 4), ("GPRs", 0.5), ("Number of GPRs", 1)),
    "spills": (("Spilled VGPRs", 1), ("Spill Count", 1), ("STP Count", 1), ("Spills to memory", 1), ("Spills", 1)),
    "scratch": (("Scratch size", 1), ("Scratch Memory Size", 1), ("SLM size", 1), ("Scratch", 1)),
    "workgroup": (("LDS size", 1), ("Workgroup Memory Size", 1)),
    "waves": (("Subgroups per SIMD", 1), ("Max Waves Per Core", 1), ("Max warps/SM", 1), ("Threads", 1 / 32)),
    "cycles": (("Cycle Count", 1), ("Cycles", 1), ("Static cycle count", 1), ("Latency", 1)),
}
"""A number of a row -> what drivers call it, and times what: registers are of four on Adreno, of 16 bits on Apple's
GPUs."""


def told_by_driver(pipelines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of the executables of a text: the largest of each number."""
    executables = [each for pipeline in pipelines for each in pipeline["executables"]]
    found = {}
    for name, statistics in STATISTICS.items():
        values = [math.ceil(each[key] * factor) for each in executables for key, factor in statistics if key in each]
        if values:
            found[name] = max(values)
    if executables:
        found["subgroup"] = executables[0]["subgroup"]
    return found


Work = tuple[str, str, str, bool]
"""Hash, case, text, whether it is compiled without checks."""


OPENS_S = 300.0
"""In which a process is to have a device: by qemu it takes half a minute of CPU time."""


class UnopenedError(Exception):
    """The driver of a place gives no adapter or no device."""


class Compiling:
    """The process of a place. A context manager."""

    def __init__(self, place: Place, environment: Mapping[str, str], folder: Path) -> None:
        self.place, self.folder, self.late = place, folder, False
        self._errors: TextIO = (folder / "stderr").open("w+")
        self._process = subprocess.Popen(
            place.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "MESA_SHADER_CACHE_DISABLE": "true",
                "PYTHONPATH": str(ROOT),
                **environment,
                **place.environment,
                "STATISTICS_LAYER_FILE": str(folder / "statistics"),
            },
        )
        self.told: dict[str, Any] = json.loads(self.line(OPENS_S) or "{}")

    def __enter__(self) -> Compiling:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def line(self, limit_s: float) -> str:
        """The next one; empty where the process ended, or was ended because it took too long (`late`)."""

        def end() -> None:
            self.late = True
            self._process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            assert self._process.stdout is not None
            return self._process.stdout.readline()
        finally:
            timer.cancel()

    def compile(self, file: Path, trusted: bool, limit_s: float) -> dict[str, Any] | None:
        """What the process says of a text; None where it ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"file": str(file), "trusted": trusted}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self.line(limit_s)
        return json.loads(line) if line else None

    def end(self) -> str:
        """How it ended, with the last that it wrote."""
        code = self._process.wait()
        self._errors.seek(0)
        return f"exit code {code}: {self._errors.read()[-600:].strip()}"


def compiled(
    place: Place, environment: Mapping[str, str], works: Sequence[Work], limit_s: float, say: Any = lambda: None
) -> list[Row]:
    """A row for each text. A process that ends at one is followed by another that goes on behind it. say: called for
    each row. Raises UnopenedError.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = folder / "text.wgsl"
        while len(rows) < len(works):
            with Compiling(place, environment, folder) as process:
                if not process.told:
                    raise UnopenedError(process.end())
                for digest, case, text, trusted in works[len(rows) :]:
                    file.write_text(text, "utf-8")
                    shader = next((line[3:] for line in text.splitlines() if line.startswith("// ")), "")
                    row = Row(place.name, digest, case, shader, trusted, "compiled")
                    rows.append(row)
                    told = process.compile(file, trusted, limit_s)
                    if told is None:
                        row.outcome, row.ms = ("late", limit_s * 1e3) if process.late else ("crashed", 0.0)
                        row.why = process.end()
                    else:
                        failed = [str(each["result"]) for each in told["pipelines"] if each["result"]]
                        row.why = told.get("error", "") or (f"VkResult {failed[0]}" if failed else "")
                        row.outcome = "refused" if row.why else "compiled"
                        row.ms = sum(each["ms"] for each in told["pipelines"])
                        for name, value in told_by_driver(told["pipelines"]).items():
                            setattr(row, name, value)
                    say()
                    # wgpu's answer where a driver fails: the next text needs a new device
                    if told is None or "is lost" in row.why:
                        break
    return rows


def adapter_of(place: Place, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the process tells of the adapter. Raises UnopenedError."""
    with tempfile.TemporaryDirectory() as folder, Compiling(place, environment, Path(folder)) as process:
        if not process.told:
            raise UnopenedError(process.end())
        return process.told


# ---- what is told

OUTCOMES = ("compiled", "refused", "crashed", "late")


def summary(place: Place, told: Mapping[str, Any], rows: Sequence[Row], cases: int | None) -> dict[str, Any]:
    """cases: of how many, where it was not all of them."""
    counts = {outcome: sum(row.outcome == outcome for row in rows) for outcome in OUTCOMES}
    done = [row for row in rows if row.outcome == "compiled"]
    return {
        "place": place.name,
        "gpu": place.gpu,
        "adapter": told["adapter"],
        "driver": told["driver"],
        "date": date.today().isoformat(),
        "wgpu": version("wgpu"),
        "system": platform.machine(),
        "cases": cases,
        "texts": len({row.digest for row in rows}),
        "pipelines": len(rows),
        **counts,
        "spilled": sum(bool(row.spills) for row in rows),
        "most_spills": max((row.spills or 0 for row in rows), default=0),
        "slowest_ms": round(max((row.ms for row in done), default=0.0)),
        "tells": any(row.spills is not None for row in done),
    }


COLUMNS = ("GPU", "driver", "texts", "compiled", "refused", "crashed", "late", "spilled", "most", "slowest")


def cells(one: Mapping[str, Any]) -> list[str]:
    spilled = (str(one["spilled"]), str(one["most_spills"])) if one["tells"] else ("not told", "")
    name = one["place"].split("/")[0]
    by_qemu = name in DRIVERS and not DRIVERS[name].suites
    return [
        one["gpu"],
        f"{name}, {one['driver'].split('-')[0]}",
        str(one["texts"]),
        f"{one['compiled']} of {one['pipelines']}",
        *(str(one[outcome]) for outcome in OUTCOMES[1:]),
        *spilled,
        f"{one['slowest_ms'] / 1e3:.1f} s" + " by qemu" * by_qemu,
    ]


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each driver and family. spilled: pipelines with registers in memory; most: of one; slowest: CPU time
    of a pipeline."""
    made = Table(title="pipelines by the drivers' compilers")
    for column in COLUMNS:
        made.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
    for one in found:
        made.add_row(*cells(one))
    return made


def spill_table(rows: Sequence[Row], most: int = 24) -> Table:
    """Cases whose kernels spill, the worst of each shader and driver."""
    worst: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.spills:
            worst[row.place, row.shader] = max(
                worst.get((row.place, row.shader), row), row, key=lambda each: each.spills or 0
            )
    made = Table(title="registers in memory: the worst of each kernel")
    for column in ("driver", "kernel", "case", "spills", "registers", "subgroup", "waves"):
        made.add_column(column, justify="left" if column in ("driver", "kernel", "case") else "right")
    for row in sorted(worst.values(), key=lambda each: -(each.spills or 0))[:most]:
        numbers = (row.spills, row.registers, row.subgroup, row.waves)
        made.add_row(row.place, row.shader[:40], row.case, *("" if n is None else str(n) for n in numbers))
    return made


def faults_of(rows: Sequence[Row]) -> list[str]:
    """A line for each row that did not compile, or that spills."""
    return [
        f"{row.outcome if row.outcome != 'compiled' else 'spilled'} {row.place} {row.shader} | {row.case}: "
        f"{row.why or row.spills}"
        for row in rows
        if row.outcome != "compiled" or row.spills
    ]


def unexpected(rows: Sequence[Row], whole: bool, names: Sequence[str]) -> list[str]:
    """What compilers_expected.txt does not list, and if the whole set was compiled for `names`, lines of it that
    nothing met."""
    lines = [
        line.split("  # ") for line in EXPECTED.read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    faults = faults_of(rows)
    other = [fault for fault in faults if not any(re.match(line[0], fault) for line in lines)]
    unmet = [
        line[0]
        for line in lines
        if whole
        and not any(re.match(line[0], fault) for fault in faults)
        and any(re.match(line[0].split(" ")[1], name) for name in names)
    ]
    return other + [f"expected, but nothing is so: {line}" for line in unmet]


def recorded() -> list[dict[str, Any]]:
    return list(json.loads(RECORD.read_text("utf-8"))) if RECORD.exists() else []


def record(found: Sequence[Mapping[str, Any]]) -> None:
    """Into compilers.json, which docs/adapters.md is written from: in place of what it has of the same drivers and
    families."""
    by_place = {one["place"]: one for one in (*recorded(), *found)}
    names = [f"{name}/{family}" for name, driver in DRIVERS.items() for family in driver.families]
    lines = [json.dumps(by_place[name]) for name in names if name in by_place]
    RECORD.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


def main(
    wanted: Annotated[
        list[str] | None, typer.Argument(help="Drivers or radv/navi31 and the like; 'here': this machine's.")
    ] = None,
    select: Annotated[str, typer.Option(help="Cases whose name matches this regular expression.")] = "",
    sample: Annotated[int | None, typer.Option(help="So many cases, by chance.")] = None,
    seed: Annotated[int, typer.Option(help="Of that chance.")] = 0,
    changed: Annotated[
        str, typer.Option(help="Beside the sample, cases whose texts differ from this commit's replay.txt.")
    ] = "",
    trusted: Annotated[
        bool | None, typer.Option(help="Only texts without naga's checks, or with them.", show_default="both")
    ] = None,
    limit_s: Annotated[float, typer.Option(help="Seconds after which a pipeline is given up.")] = 120.0,
    write_json: Annotated[
        Path | None, typer.Option("--json", help="Writes the summaries and a row for each pipeline there.")
    ] = None,
    write_record: Annotated[
        bool, typer.Option("--record", help="Writes the summaries to compilers.json, for docs/adapters.md.")
    ] = False,
) -> None:
    console, chosen = sides.console(), places(wanted or ())
    names = case_names(select)
    if sample is not None or changed:
        part = {
            *random.Random(seed).sample(names, min(sample or 0, len(names))),
            *(changed_since(changed) if changed else ()),
        }
        names = [name for name in names if name in part]
    set_of = frozenset(names)
    whole = sample is None and not (changed or select or trusted is not None)
    summaries: list[dict[str, Any]] = []
    rows: list[Row] = []
    unopened: list[str] = []
    texts: dict[Limits, dict[str, tuple[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        layers = {
            target: layer.build(Path(folder) / (target or "here"), target)
            for target in {place.target for place in chosen}
        }
        for place in chosen:
            environment = layers[place.target]
            try:
                told = adapter_of(place, environment)
            except UnopenedError as error:
                unopened.append(f"unopened {place.name}: {error}")
                continue
            limits = limits_of(told)
            if limits not in texts:  # families of a maker often have the same
                texts[limits] = composed(set_of, select, limits)
            both = (True, False) if trusted is None else (trusted,)
            works = [(digest, case, text, form) for digest, (case, text) in texts[limits].items() for form in both]
            with console.status("") as status:
                counted = iter(range(1, len(works) + 1))
                own = compiled(
                    place, environment, works, limit_s, partial(_progress, status, place.name, counted, len(works))
                )
            rows += own
            summaries.append(summary(place, told, own, None if whole else len(names)))
            console.print(
                f"{place.name}: {told['adapter']}, {told['driver']}: {len(works)} pipelines of {len(names)} cases"
            )
    console.print(table(summaries))
    if any(row.spills for row in rows):
        console.print(spill_table(rows))
    if write_json is not None:
        write_json.write_text(
            json.dumps({"summaries": summaries, "rows": [asdict(row) for row in rows]}, indent=1), "utf-8"
        )
    if write_record:
        record(summaries)
    other = unopened + unexpected(rows, whole, [one["place"] for one in summaries])
    for line in other:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1 if other else 0)


def _progress(status: Any, name: str, counted: Iterator[int], of: int) -> None:
    status.update(f"{name}: {next(counted)} of {of}")


if __name__ == "__main__":
    typer.run(main)
