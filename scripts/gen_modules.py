"""Writes docs/modules.md: the files of each folder in the order of reading, with the first sentence of their
docstrings.

usage: python scripts/gen_modules.py     (a unit test fails while the page is not up to date)
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "modules.md"

ORDER = {
    "": "errors providers config memo codec store files terminal heap private utilization",
    "ir": "types graph schemas contrib symbolic formula model_file external digest",
    "kernels": "registry built claim records target forms cost_parameters lowering host shape_arithmetic "
    "arithmetic questions "
    "halves profile tuned",
    "processes": "known child launch interrupts forks children",
    "inputs": "feeds guess",
    "session": "session opening early starting scout patching bound_runs",
    "shaders": "composer accessors element_types indices steps inlining unroll",
    "compression": "model constants layers methods prune folding static samples reading report",
    "weights": "formats functions",
    "partitioner": "decide sizes solving ranks passes standard patterns fusion fusions attention_rules recurrent_rules "
    "attention_inputs "
    "integers between_products damage absorption shared_inputs layouts widths parts costs cut grouping bodies report",
    "placement": "candidates source runner chooser proof decider estimate latency rhythm decisions",
    "scheduler": "plan planner lifetime barriers template verify kept",
    "webgpu": "choice library declarations objects native waiting implementation wgpu_native dawn bounds missing "
    "loader_paths dxc",
    "device": "info adapter identity classes gpu buffers allowance tensor pipelines cache staging timing",
    "runtime": "backend program plans runs recording ends context binding prepared commands joined_runs "
    "error_words upgrade better_plans artefact known_plans",
    "load": "choose sampler source clocks",
    "drills": "faults generator busy",
    "shim": "build loops declarations",
    "plugin": "registration factory offers provider reader partitioning state compute fallback renewal memory known "
    "transfer direct "
    "bound plain io_binding control_flow backends local explain",
    "isolation": "process worker wire channel backend remote program",
    "health": "open_adapter enumeration libraries drivers probe examination worker helper verdicts markers "
    "quirks workarounds",
    "calibration": "workloads measure roofs cache",
    "comparison": "values models bisection float64",
    "generation": "generator model_file opening request step growing encoder_decoder beams sampling drafts",
    "training": "trainer source step forward gradient differentiate losses optimizers schedules updates "
    "writer functions "
    "engine resident feeding",
    "scoring": "scorer job model sources columns outputs parts board host drive process worker running batching report",
    "cli": "shared inputs",
}
"""Where to begin in a folder of ort_gpu_ep/. The files that are not named follow, by name."""

HEAD = """# Modules

The files of each folder, in an order in which they can be read, each with the first sentence of its docstring.
[Architecture](ARCHITECTURE.md) says in which order the folders take part. `python scripts/gen_modules.py` writes this page.
"""


def sentence(path: Path) -> str:
    """The first sentence of a file's docstring, or of the comment at its head; "" without one."""
    source = path.read_text("utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(source)) or ""
    else:
        comment = re.match(r"(?:#!.*\n)?((?:(?:#|//) ?.*\n)+)", source)
        text = re.sub(r"^(#|//) ?", "", comment[1], flags=re.M) if comment else ""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)  # links are relative to the file
    return re.split(r"(?<=[.!?]) (?=[A-Z`\[])", " ".join(text.split("\n\n")[0].split()))[0]


def files(folder: Path, order: str = "") -> list[Path]:
    """The Python and shell files of a folder, those named in `order` first."""
    first = order.split()
    there = sorted(
        p for p in folder.iterdir() if p.suffix in (".py", ".sh") and p.name not in ("__init__.py", "__main__.py")
    )
    if strangers := set(first) - {p.stem for p in there}:
        raise ValueError(f"ORDER names files of {folder} that do not exist: {sorted(strangers)}")
    return sorted(there, key=lambda p: first.index(p.stem) if p.stem in first else len(first))


def section(folder: Path, order: str = "") -> str:
    about = sentence(folder / "__init__.py") if (folder / "__init__.py").is_file() else ""
    inner = [p for p in sorted(folder.iterdir()) if (p / "__init__.py").is_file()] if folder.parent != ROOT else []
    lines = [f"1. `{p.name}` {sentence(p)}".rstrip() for p in files(folder, order)]
    lines += [f"1. `{p.name}/` {sentence(p / '__init__.py')}" for p in inner]
    return "\n".join([f"\n## {folder.relative_to(ROOT).as_posix()}/\n", *([about, ""] if about else []), *lines, ""])


def text() -> str:
    package = ROOT / "ort_gpu_ep"
    folders = [package, *sorted(p for p in package.iterdir() if any(p.glob("*.py")))]
    parts = [section(p, ORDER.get("" if p == package else p.name, "")) for p in folders]
    return HEAD + "".join(
        [*parts, *(section(ROOT / name) for name in ("models", "benchmarks", "build_backend", "scripts"))]
    )


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
