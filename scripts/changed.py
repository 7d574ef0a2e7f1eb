"""Runs the tests that belong to the files that you changed, the most telling first, in about a minute.

    python scripts/changed.py [--against main] [--seconds 60] [--list] [PYTEST_ARGUMENT...]

Changed: what differs from where this branch left `--against`, committed or not, and files that git does not know yet.
To a module of the package belong the tests that name it, those that name a module which imports it, and the folder of
tests for its folder; to a module of ops, before these, the tests that name an op whose row was changed; to a kernel
those that name an op which is lowered to it; to a test's helper the tests that import it. They are taken while they are
expected to end in time, by tests/seconds.json (`python -m pytest --record-seconds tests/...` renews what it runs). What
is left out, `sh scripts/test.sh` runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ort_gpu_ep"
UNKNOWN_S = 4.0
"""CPU seconds of a test file that nobody has measured."""

EVERYWHERE = ("tests/unit/test_package.py", "tests/plugin/test_sessions.py", "tests/golden/test_golden.py")
"""Rules of the package, and models from end to end."""

TESTED_IN = {
    **dict.fromkeys(("ir", "kernels", "partitioner", "scheduler"), "unit"),
    "compression": "compressed",
    "processes": "isolation",
}
"""Folder of the package -> folder of tests, where they have other names."""

START_S = 6.0
"""Of each process of pytest."""

ELSEWHERE = (
    (r"docs/|README|CHANGELOG|CONTRIBUTING|zensical", ("tests/unit/test_docs.py", "tests/unit/test_site_pages.py")),
    (r"pyproject\.toml|build_backend/|MANIFEST", ("tests/unit/test_release.py", "tests/unit/test_package.py")),
    (r"examples/", ("tests/cli/test_examples.py",)),
    (r"models/", ("tests/models/test_builders.py", "tests/models/test_models.py")),
)
"""What is neither of the package nor of the tests, and its tests."""


@cache
def test_files() -> dict[str, str]:
    """Path -> text of all test files."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not {"clients", "site"} & set(path.parts)
    }


_ROW = re.compile(r"\b(?:op|case)\(\s*\"(\w+)\"")
"""What registers an op, or one of several of a row."""


def naming_ops(ops: Iterable[str], named_so: re.Pattern[str], shader: str = "", most: int = 6) -> list[str]:
    """The tests of ops that name one of these ops, or a kernel, the most telling first. named_so: in a test file's own
    name, which counts more than all that is in it.
    """
    counts = {}
    for file, text in test_files().items():
        if file.startswith(("tests/ops/", "tests/compressed/")):
            named = sum(len(re.findall(rf"\b{op}\b", text)) for op in ops) + (50 * text.count(shader) if shader else 0)
            if named or named_so.search(Path(file).name):
                counts[file] = named / len(text) + bool(named_so.search(Path(file).name) or (shader and shader in text))
    return sorted(counts, key=lambda f: -counts[f])[:most]


def ops_at(text: str, lines: Iterable[int]) -> list[str]:
    """The ops that are registered in those blocks of a module, function or table, where these lines are, counted from
    1; all of the module where that is none.
    """
    changed_lines, blocks, start = set(lines), list[tuple[int, str]](), 1
    for block in re.split(r"(?<=\n)\n\n(?=\S)", text):
        blocks.append((start, block))
        start += block.count("\n") + 2
    ops = [
        op
        for begin, block in blocks
        if any(begin <= line < begin + block.count("\n") + 1 for line in changed_lines)
        for op in _ROW.findall(block)
    ]
    return list(dict.fromkeys(ops or _ROW.findall(text)))


def changed_lines(path: str, against: str) -> list[int]:
    """Of a file as it is now; those behind what was deleted, too."""
    lines = list[int]()
    for hunk in git("diff", "-U0", against, "--", path):
        if place := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", hunk):
            lines += range(int(place[1]), int(place[1]) + max(int(place[2] or 1), 1))
    return lines


def of_kernel(shader: str) -> list[str]:
    """The tests that name an op whose row lowers it to this kernel, or the kernel itself, the most telling first: with
    its first word or its row's name in theirs, or its name in their text, before all others.
    """
    texts = {
        path.stem: path.read_text("utf-8")
        for path in [*(PACKAGE / "ops").glob("*.py"), *(PACKAGE / "kernels").glob("*.py")]
    }
    rows = modules = {name for name, text in texts.items() if shader in text}
    while True:  # what several rows share is imported by them
        ops = {op for name in modules for op in _ROW.findall(texts[name])}
        imported = re.compile("|".join(rf"\bimport\b.*\b{name}\b|\.{name} import" for name in modules) or "(?!)")
        wider = modules | {name for name, text in texts.items() if imported.search(text)}
        if ops or wider == modules:
            break
        modules = wider
    return naming_ops(ops, re.compile("|".join([*rows, shader.removesuffix(".wgsl").split("_")[0]])), shader)


def naming(path: str) -> re.Pattern[str]:
    """What names a module of the package in a text."""
    *folder, name = Path(path.removesuffix("/__init__.py")).with_suffix("").parts
    package = r"\.".join(folder)
    return re.compile(rf"\b{package}\.{name}\b|from {package} import [^\n]*\b{name}\b|\b{name}\.py\b")


def counted(path: str) -> dict[str, float]:
    """The tests that name a module, and how often for their length; test_NAME.py before all others."""
    named, own = naming(path), f"test_{Path(path).stem}.py"
    found = {f: len(named.findall(text)) + 100 * (Path(f).name == own) for f, text in test_files().items()}
    return {f: count / len(test_files()[f]) for f, count in found.items() if count}


def of_module(path: str) -> list[str]:
    """The tests that name a module of the package, those that name a module which imports it, and those of its
    folder."""
    direct, nearby = counted(path), dict[str, float]()
    named = naming(path)
    for other in PACKAGE.rglob("*.py"):
        if named.search(other.read_text("utf-8")) and (near := other.relative_to(ROOT).as_posix()) != path:
            for file, weight in counted(near).items():
                nearby[file] = max(weight, nearby.get(file, 0.0))
    first, second = (sorted(found, key=lambda f, found=found: -found[f]) for found in (direct, nearby))  # type: ignore[misc]
    folder = TESTED_IN.get(room := Path(path).parts[1], room)
    beside = [f for f in test_files() if f.startswith(f"tests/{folder}/")]
    return list(dict.fromkeys([*first[:4], *EVERYWHERE, *first[4:], *second, *beside]))


def of_helper(path: str) -> list[str]:
    """The tests that import from a file of the tests, directly."""
    if path == "tests/conftest.py":
        return list(EVERYWHERE)
    if Path(path).name == "conftest.py":
        return [f for f in test_files() if f.startswith(Path(path).parent.as_posix() + "/")]
    named = naming(path)
    return [f for f, text in test_files().items() if named.search(text)]


def of_file(path: str, against: str = "HEAD") -> list[str]:
    """The tests that belong to one file of the checkout. against: a commit; what differs from it was changed."""
    if path in test_files():
        return [path]
    if path.startswith("tests/golden/"):
        return ["tests/golden/test_golden.py"]
    if path.startswith("tests/"):
        return of_helper(path)
    if path.endswith(".wgsl"):
        return of_kernel(Path(path).name)
    if path.startswith("ort_gpu_ep/ops/") and (
        ops := ops_at((ROOT / path).read_text("utf-8"), changed_lines(path, against))
    ):
        return list(dict.fromkeys([*naming_ops(ops, re.compile(rf"\b{Path(path).stem}\b")), *of_module(path)]))
    if path.startswith("ort_gpu_ep/") and path.endswith(".py"):
        return of_module(path)
    found = next((list(tests) for pattern, tests in ELSEWHERE if re.match(pattern, path)), [])
    return found or [
        f
        for f, text in test_files().items()
        if re.search(rf"\b{re.escape(Path(path).stem)}\b", text) and Path(path).parts[0] in text
    ]


def in_turn(lists: Iterable[list[str]]) -> list[str]:
    """The first of each list, then the second of each."""
    rest = [list(found) for found in lists]
    taken: dict[str, None] = {}
    while any(rest):
        for found in rest:
            if found:
                taken.setdefault(found.pop(0))
    return list(taken)


def within(tests: list[str], seconds: float, cores: int) -> tuple[list[str], list[str]]:
    """Those that are expected to end in time, in this order, and the others. One at least."""
    known = json.loads((ROOT / "tests" / "seconds.json").read_text("utf-8"))
    left_s, longest_s, taken, others = (seconds - START_S) * cores, seconds - START_S, list[str](), list[str]()
    for test in tests:
        takes_s = float(known.get(test, UNKNOWN_S))
        if not taken or (takes_s <= left_s and takes_s <= longest_s):
            taken.append(test)
            left_s -= takes_s
        else:
            others.append(test)
    return taken, others


def git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def changed(base: str) -> list[str]:
    """Files that differ from a commit, and are there."""
    names = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    return [f for f in dict.fromkeys(names) if (ROOT / f).is_file()]


def environment() -> dict[str, str]:
    """Of tests, as scripts/test.sh has it and says why."""
    return {"GALLIVM_PERF": "nopt", **os.environ}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="main", help="a branch or commit")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--list", action="store_true", help="only tell which tests")
    asked, more = parser.parse_known_args()
    (base,) = git("merge-base", "HEAD", asked.against)
    files = changed(base)
    cores = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)
    tests, others = within(in_turn(of_file(f, base) for f in files), asked.seconds, cores)
    left_out = f", {len(others)} more would take too long" if others else ""
    print(f"{len(files)} files changed, {len(tests)} test files belong to them{left_out}", flush=True)
    if asked.list or not tests:
        print("\n".join([*tests, *(f"({f})" for f in others)]))
        return 0
    spread = (
        ["-n", str(min(cores, len(tests))), "--dist", "loadfile", "--no-loadscope-reorder"] if len(tests) > 1 else []
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", *spread, *tests, *more], cwd=ROOT, env=environment(), check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
