"""Which kernel texts a change changes: every kernel of a fixed set is composed, without a GPU, and compared between
commits.

    python -m benchmarks.replay check                   whether replay.txt agrees with this folder
    python -m benchmarks.replay update                  writes replay.txt anew, and says what changed
    python -m benchmarks.replay compare OLD [NEW]       the difference of the texts; OLD, NEW: a commit, or a folder with the package

All of them take --select REGEX. The set: ONNX's node cases, the problems in the records of kernels, the networks of
models/, some of them compressed, and training steps of some, each planned for the limits of an H200, of lavapipe and of
WebGPU's guaranteed minimum. It is planned as a session with placement=gpu plans, but without onnxruntime's
optimisations before; a partition that needs what another one computes before its kernels are known is not in it.
replay.txt has a line for each case and each list of kernels: the case, the limits with these kernels, a hash of each
kernel's text.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import onnx
import typer

import models
import ort_gpu_ep.ops  # noqa: F401  fills the registry
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep.compression import compress
from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import GpuEpError
from ort_gpu_ep.health import conformance
from ort_gpu_ep.ir.graph import Array, Graph, from_onnx
from ort_gpu_ep.ir.types import BY_NAME, TensorType
from ort_gpu_ep.kernels.cost_parameters import SOFTWARE_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.kernels.registry import UnknownValueError
from ort_gpu_ep.kernels.target import DEFAULT_LIMITS, SHOWN_FEATURES, Limits
from ort_gpu_ep.partitioner import partition, rewrite
from ort_gpu_ep.partitioner.grouping import boundary
from ort_gpu_ep.partitioner.sizes import Guess, stand_in
from ort_gpu_ep.scheduler import template
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.template import make_template
from ort_gpu_ep.shaders import compose
from ort_gpu_ep.training import SGD, Adam, make_training_step

RECORDED = Path(__file__).with_suffix(".txt")
HASH_DIGITS = 10
CASE_SIZE = 64
"""What stands for a size that nothing tells."""

COMPRESSED = {
    "lenet5": ("int8", "int8+", "int4", "codebook4", "prune90"),
    "mlp_784": ("int8", "int4", "codebook4", "prune90"),
    "mobilenet_v2": ("int8+",),
    "squeezenet1_1": ("int8+", "prune90"),
}
TRAINED, TRAINED_BATCH = ("lenet5", "mlp_16", "har_lstm"), 4

LIMITS: Mapping[str, Limits] = {
    "h200": replace(
        DEFAULT_LIMITS,
        features=frozenset({"shader-int64", "shader-f16", "subgroup", *SHOWN_FEATURES}),
        max_binding_nbytes=(1 << 31) - 4,
        max_buffer_nbytes=1 << 40,
        max_buffers_per_stage=32,
        max_workgroup_nbytes=49152,
        max_invocations=1024,
        offset_alignment=32,
        max_loop_iterations=1 << 40,
        subgroup_size=32,
    ),
    "lavapipe": replace(
        DEFAULT_LIMITS,
        features=frozenset({"shader-int64", "shader-f16", "subgroup", *SHOWN_FEATURES}),
        max_buffer_nbytes=(1 << 31) - 1,
        max_buffers_per_stage=32,
        max_workgroup_nbytes=32768,
        max_invocations=1024,
        offset_alignment=32,
        figures=SOFTWARE_FIGURES,
    ),
    "minimum": DEFAULT_LIMITS,
}

Texts: TypeAlias = list[str]
"""Of the kernels of a case, in the order of their dispatches."""
Kernels: TypeAlias = dict[str, dict[str, list[str]]]
"""Case -> limits -> hashes."""
Source: TypeAlias = Callable[[], tuple[onnx.ModelProto, Mapping[str, Array], str]]
"""Gives a model, the inputs that are known of it, and the form that is forced, or nothing."""


# ---- the set


def sources(select: str = "") -> Iterator[tuple[str, Source]]:
    """Of the whole set, and of what `select` begins with alone where that is another kind: ONNX takes 5 s of CPU to
    make its cases."""
    kind = re.match(r"\^?(conformance|record|model|compressed|training)/", select)
    for case in conformance.cases() if kind is None or kind[1] == "conformance" else ():
        yield f"conformance/{case.name}", lambda case=case: (case.model, _feeds(case), "")  # type: ignore[misc]
    for shader, record in sorted(RECORDS.items()):
        # a node whose images lie channels last is the layout pass's: networks have them
        for k, problem in enumerate(problem for problem in record.problems if problem.last is None):
            for form in problem.forms or ("",):
                name = f"record/{shader.removesuffix('.wgsl')}/{k}{form and '/' + form.replace(' ', '_')}"
                yield name, lambda problem=problem, form=form: (problem.model(), {}, form)  # type: ignore[misc]
    for name in models.BUILDERS:
        yield f"model/{name}", lambda name=name: (models.build(name), {}, "")  # type: ignore[misc]
    for name, methods in COMPRESSED.items():
        for method in methods:
            yield f"compressed/{name}/{method}", lambda name=name, method=method: (compressed(name, method), {}, "")  # type: ignore[misc]
    for name in TRAINED:
        for optimizer in ("sgd", "adam"):
            yield (
                f"training/{name}/{optimizer}",
                lambda name=name, optimizer=optimizer: (_step(name, optimizer), {}, ""),
            )  # type: ignore[misc]


def _feeds(case: Any) -> dict[str, Array]:
    names = [i.name for i in case.model.graph.input]
    values = case.data_sets[0][0] if case.data_sets else ()
    arrays = (onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values)
    return {n: np.asarray(a) for n, a in zip(names, arrays, strict=False) if isinstance(a, np.ndarray | np.generic)}


def compressed(name: str, method: str) -> onnx.ModelProto:
    """With `+` behind int8, activations are quantized, too."""
    model = models.build(name)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "model.onnx"), Path(folder, "small.onnx")
        onnx.save(model, source)
        samples = make_inputs(model_inputs(model)) if method.endswith("+") else None
        compress(source, target, method.rstrip("+"), calibrate=samples)
        return onnx.load(target)


def _step(name: str, optimizer: str) -> onnx.ModelProto:
    made = {"sgd": SGD(1e-2, momentum=0.9), "adam": Adam(1e-3)}[optimizer]
    return make_training_step(models.build(name), loss="cross_entropy", optimizer=made, batch=TRAINED_BATCH).model


# ---- their kernels


def kernel_texts(graph: Graph, feeds: Mapping[str, Array], limits: Limits) -> Texts:
    """The text of each kernel of a graph, partition by partition. Raises GpuEpError."""
    texts: Texts = []
    for members in partition(graph, Config(placement="gpu"), limits, software=False).groups:
        nodes = [node for node in graph.nodes if node.id in set(members)]
        names, outputs = boundary(nodes, graph.nodes, graph.outputs)
        inputs = [n for n in names if not graph.values[n].is_constant]
        types = [_type_of(graph, n, feeds) for n in inputs]
        known = [t for t in types if t is not None]
        if len(known) < len(types):
            continue
        alone = Graph(graph.name, tuple(inputs), tuple(outputs), tuple(nodes), graph.values)
        is_open = any(not isinstance(d, int) for n in inputs for d in graph.values[n].shape or (None,))
        for constant in (False, True) if is_open else (False,):
            texts += _planned(alone, known, feeds, limits, constant)
    return texts


def _type_of(graph: Graph, name: str, feeds: Mapping[str, Array]) -> TensorType | None:
    if name in feeds:
        found = BY_NAME.get(feeds[name].dtype.name)
        return TensorType(found, feeds[name].shape) if found else None
    return stand_in(graph.values[name], Guess(CASE_SIZE))


def _planned(
    graph: Graph, types: list[TensorType], feeds: Mapping[str, Array], limits: Limits, constant: bool
) -> Texts:
    """What a run of these types dispatches: as in a session, the content of inputs is looked at where a row asks for
    it."""
    values: dict[int, Array] = {}
    while True:
        try:
            plan = make_template(graph, types, limits, rewrite, values, constant=constant).plan
        except UnknownValueError as error:
            wanted = {k for k in template.sources(graph, error.operand, types) if graph.inputs[k] in feeds} - set(
                values
            )
            if not wanted:
                return []
            values |= {k: feeds[graph.inputs[k]] for k in wanted}
            continue
        steps = (*plan.prologue, *plan.steps, *plan.inverses)
        return [compose(step.kernel, step.bindings, limits) for step in steps if isinstance(step, Dispatch)]


def parser_of(description: str) -> argparse.ArgumentParser:
    """What a script is told that looks at a part of the set."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--select", default="", help="cases whose name matches this regular expression")
    parser.add_argument("--share", type=int, default=1, help="one in so many cases, but every record's")
    return parser


def replayed(
    select: str = "",
    share: int = 1,
    adapters: Mapping[str, Limits] = LIMITS,
    names: frozenset[str] | None = None,
) -> tuple[Kernels, dict[str, str]]:
    """Case -> limits -> hashes, and hash -> text. share: one in so many cases, but every record's. adapters: limits by
    name. names: of these cases alone.
    """
    kernels: Kernels = {}
    texts: dict[str, str] = {}
    for k, (name, source) in enumerate(sources(select)):
        if (
            not re.search(select, name)
            or (k % share and not name.startswith("record/"))
            or (names is not None and name not in names)
        ):
            continue
        try:
            model, feeds, form = source()
            graph = from_onnx(model)
        except (GpuEpError, onnx.shape_inference.InferenceError):
            continue  # no session takes it, either
        for limits in adapters:
            try:
                with forced(form):
                    found = kernel_texts(graph, feeds, adapters[limits])
            except GpuEpError:
                found = []  # declined as a whole, with these inputs
            hashes = [hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS] for text in found]
            texts |= dict(zip(hashes, found, strict=True))
            if hashes:
                kernels.setdefault(name, {})[limits] = hashes
    return kernels, texts


# ---- the file


def lines_of(kernels: Kernels) -> list[str]:
    """A line for each case and each list of hashes, with the limits that have it."""
    lines = []
    for name in sorted(kernels):
        by_hashes: dict[str, list[str]] = {}
        for limits, hashes in kernels[name].items():
            by_hashes.setdefault(" ".join(hashes), []).append(limits)
        lines += [f"{name} {','.join(limits)} {hashes}" for hashes, limits in by_hashes.items()]
    return lines


def kernels_of(lines: list[str]) -> Kernels:
    """What `lines_of` wrote."""
    kernels: Kernels = {}
    for line in lines:
        name, limits, *hashes = line.split(" ")
        kernels.setdefault(name, {}).update(dict.fromkeys(limits.split(","), hashes))
    return kernels


def recorded() -> Kernels:
    return kernels_of(RECORDED.read_text().splitlines())


def changes(old: Kernels, new: Kernels) -> list[tuple[str, str]]:
    """(case, limits) whose kernels differ, or that only one of them has."""
    pairs = dict.fromkeys((name, limits) for kernels in (old, new) for name in kernels for limits in kernels[name])
    return [(n, limits) for n, limits in pairs if old.get(n, {}).get(limits) != new.get(n, {}).get(limits)]


def _told(changed: list[tuple[str, str]], old: Kernels, new: Kernels, most: int = 40) -> None:
    for name, limits in changed[:most]:
        before, after = old.get(name, {}).get(limits, []), new.get(name, {}).get(limits, [])
        what = f"{len(before)} kernels, {len(after)} now" if len(before) != len(after) else "other texts"
        print(f"{name} {limits}: {what}")
    if len(changed) > most:
        print(f"... and {len(changed) - most} more")


def _selected(kernels: Kernels, select: str) -> Kernels:
    return {name: found for name, found in kernels.items() if re.search(select, name)}


app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
Select = Annotated[str, typer.Option(help="Cases whose name matches this regular expression.")]


@app.command()
def check(select: Select = "") -> None:
    """Whether replay.txt agrees with this folder: exit code 1 if not."""
    old, (new, _) = _selected(recorded(), select), replayed(select)
    changed = changes(old, new)
    _told(changed, old, new)
    print(f"{len(changed)} of {sum(map(len, new.values()))} lists of kernels differ from {RECORDED.name}")
    if changed:
        print(
            "see them: python -m benchmarks.replay compare COMMIT; where the change is meant: python -m "
            "benchmarks.replay update"
        )
    raise typer.Exit(1 if changed else 0)


@app.command()
def update(select: Select = "") -> None:
    """Writes replay.txt, and tells what changed."""
    before = recorded() if RECORDED.exists() else {}
    new, _ = replayed(select)
    changed = changes(_selected(before, select), new)
    kept = {name: found for name, found in before.items() if not re.search(select, name)}
    RECORDED.write_text("\n".join(lines_of(kept | new)) + "\n")
    _told(changed, before, new)
    print(f"{len(changed)} of {sum(map(len, new.values()))} lists of kernels changed")


@app.command()
def compare(
    old: Annotated[str, typer.Argument(help="A commit, or a folder with the package.")],
    new: Annotated[str, typer.Argument(help="Likewise; this folder by default.")] = str(RECORDED.parents[1]),
    select: Select = "",
    shown: Annotated[int, typer.Option(help="Differences shown at most.")] = 12,
) -> None:
    """Which texts differ between two versions, and how; of texts that differ alike, one is shown."""
    from benchmarks.compare import folder_of

    with tempfile.TemporaryDirectory() as temporary:
        folders = [folder_of(version, Path(temporary, side)) for version, side in ((old, "old"), (new, "new"))]
        outputs = [Path(temporary, f"{k}.json") for k in range(2)]
        processes = [
            subprocess.Popen(
                [sys.executable, _program(folder), "dump", str(output), "--select", select],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(folder)},
            )
            for folder, output in zip(folders, outputs, strict=True)
        ]
        ended = [process.wait() for process in processes]
        if any(ended):
            raise typer.Exit(2)
        (before, texts), (after, others) = (json.loads(output.read_text()) for output in outputs)
    changed = changes(before, after)
    _told(changed, before, after)
    _show(changed, (before, after), texts | others, shown)
    print(f"{len(changed)} of {sum(map(len, after.values()))} lists of kernels differ")


def _program(folder: Path) -> str:
    """The version's own, which knows its package; this one for a folder that holds a package alone."""
    own = folder / "benchmarks" / "replay.py"
    return str(own if own.is_file() else __file__)


def _show(changed: list[tuple[str, str]], sides: tuple[Kernels, Kernels], texts: Mapping[str, str], most: int) -> None:
    """The differences of texts, each once."""
    shown = set[str]()
    for name, limits in changed:
        lists = [side.get(name, {}).get(limits, []) for side in sides]
        if not all(lists) or len(lists[0]) != len(lists[1]):
            continue
        for old, new in zip(*lists, strict=True):
            difference = list(
                difflib.unified_diff(
                    texts[old].splitlines(),
                    texts[new].splitlines(),
                    f"{name} {limits} {old}",
                    f"{name} {limits} {new}",
                    lineterm="",
                    n=2,
                )
            )
            body = "\n".join(line for line in difference[2:] if line[:1] in "+-")
            if body and body not in shown and len(shown) < most:
                shown.add(body)
                print("\n".join(difference))


@app.command()
def dump(output: Path, select: Select = "") -> None:
    """Writes hashes and texts as JSON, for `compare`."""
    output.write_text(json.dumps(replayed(select)))


if __name__ == "__main__":
    app()
