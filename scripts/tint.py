"""Compiles the composed shaders by Tint, the compiler of Chrome and of Dawn: wgpu's naga is not the only one that reads
them.

    python scripts/tint.py [--select REGEX] [--share N] [CLASS...]

The texts are those of benchmarks/replay.py: ONNX's node cases, the kernels' records, networks, compressed ones and
training steps, composed without a GPU, as they are and with the bounds checks that webgpu/bounds.py writes into them
for Dawn. They are composed for classes of GPUs (ort_gpu_ep/device/classes.json) without 64-bit integers, which WGSL has
only with naga. No class has matrix units: products and attention on them are composed besides, in each tile and of each
fragment. Tint runs on the null backend of Dawn in npm's package `webgpu`, which this installs into .tint/: it needs
node, and no GPU. tint_expected.txt lists what Tint may refuse, with a reason for each. Exit code 1 if it refuses
another text, or takes one of those. share: one in so many cases.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.replay import parser_of, replayed  # noqa: E402
from ort_gpu_ep.device.classes import named  # noqa: E402
from ort_gpu_ep.health.probes.matrix_units import in_tile  # noqa: E402
from ort_gpu_ep.ir.graph import Graph, Node, Value  # noqa: E402
from ort_gpu_ep.ir.types import FLOAT32, TensorType  # noqa: E402
from ort_gpu_ep.kernels.forms import forced  # noqa: E402
from ort_gpu_ep.kernels.target import (  # noqa: E402
    DEFAULT_LIMITS,
    FRAGMENTS,
    MATRIX_ATTENTION,
    MATRIX_UNITS,
    SUBGROUP_MATRIX,
    TF32,
    USUAL_SUBGROUP,
    Limits,
)
from ort_gpu_ep.ops import attention_units, matrix_units  # noqa: E402
from ort_gpu_ep.scheduler import make_plan  # noqa: E402
from ort_gpu_ep.scheduler.plan import Dispatch  # noqa: E402
from ort_gpu_ep.shaders import compose  # noqa: E402
from ort_gpu_ep.webgpu.bounds import with_bounds  # noqa: E402

CHECKER = Path(__file__).with_name("tint.mjs")
EXPECTED = Path(__file__).with_name("tint_expected.txt")
INSTALLED = ROOT / ".tint"
PACKAGE = "webgpu@0.6.2"
CLASSES = ("minimum", "adreno-6xx", "apple-m1", "amd-rdna")


def main() -> None:
    parser = parser_of(__doc__.partition("\n\n")[0])
    parser.add_argument("classes", nargs="*", default=CLASSES)
    asked = parser.parse_args()
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed: Tint comes as a package of npm's. Install node 20 or newer")
    if not (INSTALLED / "node_modules" / "webgpu").is_dir():
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(INSTALLED), PACKAGE], check=True
        )
    with tempfile.TemporaryDirectory() as folder:
        folders = [*written(Path(folder), asked.classes, asked.select, asked.share), written_units(Path(folder))]
        shutil.copy(CHECKER, INSTALLED / CHECKER.name)  # node looks for packages beside the program
        classes = ROOT / "ort_gpu_ep" / "device" / "classes.json"
        done = subprocess.run(["node", str(INSTALLED / CHECKER.name), str(classes), str(EXPECTED), *map(str, folders)])
    sys.exit(done.returncode)


def written(folder: Path, classes: list[str], select: str, share: int) -> list[Path]:
    """A folder for each class with its texts, each with the first case that has it in its first line."""
    limits = {name: named(name).as_limits(without={"shader-int64"}) for name in classes}
    kernels, texts = replayed(select, share, limits)
    for name in classes:
        (folder / name).mkdir()
    for case, found in kernels.items():
        for name, hashes in found.items():
            for digest in hashes:
                path = folder / name / f"{digest}.wgsl"
                if not path.exists():
                    _write(path, case, texts[digest])
    return [folder / name for name in classes]


HEADS = 16, 40, 64, 128, 256
"""Elements: of some a part is zeros, and the last has the form for wide ones."""


def written_units(folder: Path) -> Path:
    """A folder of kernels on matrix units, in each tile and of each fragment."""
    (folder / "units").mkdir()
    for name in FRAGMENTS:
        limits = replace(
            DEFAULT_LIMITS,
            max_workgroup_nbytes=49152,
            subgroup_size=USUAL_SUBGROUP,
            precision=TF32,
            configurations=(name,),
            features=frozenset({"shader-f16", "subgroup", SUBGROUP_MATRIX, MATRIX_UNITS, MATRIX_ATTENTION}),
        )
        for tile in matrix_units.TILES:
            with in_tile(tile):
                _write_unit(
                    folder / "units",
                    f"{name} {tile.name}",
                    Node("MatMul", ("a", "b"), ("y",), version=13),
                    (512, 512),
                    limits,
                )
        for width in HEADS:
            (form,) = attention_units.forms_of(limits, FLOAT32, 512, 512, width, width)
            with forced(form.name):
                node = Node("Attention", ("q", "k", "v"), ("y",), version=23)
                _write_unit(folder / "units", f"{name} attention {width}", node, (1, 1, 512, width), limits)
    return folder / "units"


def _write_unit(folder: Path, name: str, node: Node, shape: tuple[int, ...], limits: Limits) -> None:
    """The kernel of a node all of whose inputs have a shape."""
    graph = Graph("g", node.inputs, node.outputs, (node,), {n: Value(n, FLOAT32, shape) for n in node.inputs})
    plan = make_plan(graph, dict.fromkeys(node.inputs, TensorType(FLOAT32, shape)), limits)
    (kernel,) = [step for step in plan.steps if isinstance(step, Dispatch) and SUBGROUP_MATRIX in step.kernel.features]
    _write(folder / f"{name.replace(' ', '_')}.wgsl", name, compose(kernel.kernel, kernel.bindings, limits))


def _write(path: Path, case: str, text: str) -> None:
    """As it is, and with checks."""
    path.write_text(f"// {case}\n{text}", "utf-8")
    path.with_stem(f"{path.stem}_checked").write_text(f"// {case}\n{with_bounds(text)}", "utf-8")


if __name__ == "__main__":
    main()
