"""Plants faults, one at a time, in a copy of this checkout, and counts those that the tests meant for their place find.

    python scripts/mutate.py [--faults 60] [--seed 0] [--area kernels] [--limit 600] [--json FILE]

A fault is a small change of meaning: an operator or a comparison turned round, a number off by one, a condition turned
over, an `and` for an `or`. Areas take turns; --area plants only those of the asked faults that are of it. Exit code 1
where more than one in thirty is missed. A missed one is a test to write, or a change that changes nothing: its diff is
printed. A test that fails, or takes too long, without the fault finds nothing: what failed runs again without it. `--dry`
prints the faults alone.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from changed import environment, of_kernel

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ort_gpu_ep"
COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPUTED = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "//", "and": "or", "or": "and"}
FAILED = ".failed"
"""Folder, in the copy, where pytest keeps which test failed."""
QUIET = re.compile(
    r"^\s*(raise|assert|return f?[\"']|f?[\"']|#|log\.|_log|import|from|@)|Error\(|_ns\b|NoReturn|TypeVar|\bindent="
)
"""Lines whose changes are another wording, an estimate of time, or no change at run time."""


@dataclass(frozen=True)
class Area:
    """Where faults are planted, and the tests that are meant to find them: those that name what the file is about, and
    always some."""

    files: tuple[str, ...]
    always: tuple[str, ...]


AREAS = {
    "kernels": Area(("shaders/*.wgsl",), ()),
    "planner": Area(
        (
            "scheduler/lifetime.py",
            "scheduler/barriers.py",
            "scheduler/planner.py",
            "ir/symbolic.py",
            "partitioner/grouping.py",
        ),
        (
            "tests/unit/test_lifetime.py",
            "tests/unit/test_barriers.py",
            "tests/unit/test_plan.py",
            "tests/unit/test_symbolic.py",
            "tests/unit/test_grouping.py",
            "tests/golden",
            "tests/unit/test_partition.py",
            "tests/plugin/test_sessions.py",
            "tests/ops/test_attention_units.py",
        ),
    ),
    "placement": Area(
        tuple(f"placement/{name}.py" for name in ("decider", "latency", "rhythm", "estimate", "proof")),
        ("tests/placement",),
    ),
    "scoring": Area(
        tuple(f"scoring/{name}.py" for name in ("board", "batching", "columns", "parts", "outputs")),
        tuple(
            f"tests/scoring/test_{name}.py"
            for name in (
                "board",
                "batching",
                "columns",
                "outputs",
                "scoring_parts",
                "scoring_sources",
                "predictor",
                "scoring_score",
            )
        ),
    ),
    "training": Area(
        ("training/rules/*.py", "training/optimizers.py", "training/losses.py", "training/schedules.py"),
        ("tests/training/test_gradients.py", "tests/training/test_updates.py", "tests/training/test_step.py"),
    ),
}


@dataclass(frozen=True)
class Fault:
    """One change: in a file of the checkout, from start to end (characters), to `new`."""

    area: str
    file: str
    start: int
    end: int
    new: str

    def diff(self, text: str) -> str:
        """What changes, a line before and after."""
        changed = text[: self.start] + self.new + text[self.end :]
        return "\n".join(list(difflib.unified_diff(text.splitlines(), changed.splitlines(), lineterm="", n=0))[2:])


def swaps(line: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, new) of the operators between blanks, and of numbers off by one."""
    for found in re.finditer(r"(?<= )(<=|>=|==|!=|<|>|\+|-|\*|//|/|%|and|or)(?= )", line):
        yield found.start(), found.end(), {**COMPARED, **COMPUTED}[found.group()]
    for found in re.finditer(r"(?<![\w.\"'])(\d{1,2})(?=u?[\s,;)\]:])(?!\.)", line):
        yield found.start(), found.end(), str(int(found.group()) + 1)
    for found in re.finditer(r"\b(if|while) (?!not )(?=[\w.]+:)", line):
        yield found.end(), found.end(), "not "


def quiet_lines(path: Path, text: str) -> set[int]:
    """Numbers of lines that hold prose, types or messages."""
    quiet = {n for n, line in enumerate(text.splitlines(), 1) if QUIET.search(line)}
    if path.suffix == ".wgsl":
        return quiet | {
            n
            for n, line in enumerate(text.splitlines(), 1)
            if line.lstrip().startswith(("//", "#", "var<", "override"))
        }
    for node in ast.walk(ast.parse(text)):
        prose = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (prose or isinstance(node, ast.Raise | ast.Assert | ast.AnnAssign)):
            quiet |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return quiet


def faults_of(area: str) -> list[Fault]:
    """All that could be planted there."""
    found = []
    for pattern in AREAS[area].files:
        for path in sorted(PACKAGE.glob(pattern)):
            text, start = path.read_text("utf-8"), 0
            quiet = quiet_lines(path, text)
            for number, line in enumerate(text.splitlines(keepends=True), 1):
                code = re.split(r"  #|//", line)[0] if path.suffix == ".wgsl" else line.split("  #")[0]
                if number not in quiet:
                    name = path.relative_to(ROOT).as_posix()
                    for a, b, new in swaps(code):
                        new = new.replace("//", "/") if path.suffix == ".wgsl" else new  # there it begins a comment
                        found.append(Fault(area, name, start + a, start + b, new))
                start += len(line)
    return found


def meant_for(fault: Fault) -> list[str]:
    """Tests of the area; of a kernel those that name an op which its row lowers to it, the most telling first."""
    if fault.area != "kernels":
        return list(AREAS[fault.area].always)
    return ["tests/health/test_probes.py", *of_kernel(Path(fault.file).name)]


def chosen(count: int, seed: int) -> list[Fault]:
    """Areas in turn, in each the file first, so that a long one has no more than a short one. Each fault is drawn by
    the seed and its own number: a change of one file leaves those of the others what they are.
    """
    found, possible = list[Fault](), {area: faults_of(area) for area in AREAS}
    for number in range(count):
        area, rng = list(AREAS)[number % len(AREAS)], random.Random(f"{seed} {number}")
        while len(found) == number:
            file = rng.choice(sorted({f.file for f in possible[area]}))
            fault = rng.choice([f for f in possible[area] if f.file == file])
            if fault not in found:
                found.append(fault)
    return found


def passes(folder: Path, tests: list[str], limit_s: float, *more: str) -> bool:
    """Whether the tests pass, and in time."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", f"cache_dir={FAILED}", f"--timeout={limit_s:.0f}"]
    env = {**environment(), "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [*command, *more, *tests], cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            return False


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", action="append", choices=AREAS)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests of a fault")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dry", action="store_true")
    return parser.parse_args()


def main() -> int:
    asked = options()
    missed, told = 0, []
    faults = [fault for fault in chosen(asked.faults, asked.seed) if fault.area in (asked.area or AREAS)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "checkout"
        if not asked.dry:
            left_out = shutil.ignore_patterns(".git", ".venv", ".vulkan", ".*_cache", "__pycache__")
            shutil.copytree(ROOT, folder, ignore=left_out, symlinks=True)
        for number, fault in enumerate(faults, 1):
            text, start_s = (ROOT / fault.file).read_text("utf-8"), time.monotonic()
            print(f"{number} {fault.file}\n{fault.diff(text)}", flush=True)
            if asked.dry:
                continue
            tests = meant_for(fault)
            shutil.rmtree(folder / FAILED, ignore_errors=True)
            (folder / fault.file).write_text(text[: fault.start] + fault.new + text[fault.end :], "utf-8")
            survived = passes(folder, tests, asked.limit)
            (folder / fault.file).write_text(text, "utf-8")
            if not survived and not passes(folder, tests, asked.limit, "--lf"):
                survived = True
                print(f"one of these fails, or takes too long, without a fault: {' '.join(tests)}", flush=True)
            missed += survived
            told.append({**asdict(fault), "found": not survived})
            print(
                f"{'MISSED' if survived else 'found'} in {time.monotonic() - start_s:.0f} s; {number - missed} "
                f"of {number}",
                flush=True,
            )
            if asked.json:
                asked.json.write_text(json.dumps(told, indent=1))
    return int(30 * missed > len(faults))


if __name__ == "__main__":
    sys.exit(main())
