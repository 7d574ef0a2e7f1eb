"""Runs onnxruntime's own Python tests with this package, and says which of those that pass with onnxruntime alone do
not pass here.

    python scripts/onnxruntime_tests.py [--python PYTHON] [--form FORM] [--option NAME=VALUE] [--select REGEX]
    CHECKOUT/onnxruntime/test

The tests are not a part of this package: CHECKOUT is a clone of https://github.com/microsoft/onnxruntime. The files are
those of test/python whose names begin with onnxruntime_test_python, and test/python/quantization; a copy of the folder
is made for each run, as tests write beside their data. PYTHON: an interpreter, given once for each version of
onnxruntime; it needs this package's dependencies, pytest, and an onnx that this onnxruntime reads.

Forms: drop-in (`import ort_gpu_ep` where a test has `import onnxruntime`), patched (`ort_gpu_ep.patch()`), exec (below
`ort-gpu-ep exec`), by-name (onnxruntime's own class, with this provider first in the list of each session). Exit code 1
if a test differs that EXPECTED does not name.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
FORMS = ("drop-in", "patched", "exec", "by-name")
TIMEOUT_S = 3600
EXPECTED = {
    "test_get_graph_provider_assignment_info": "it asks whether all nodes are the CPU's",
    "test_qdq_default": "a Sigmoid's largest value is compared to the last bit",
    "test_qdq_default_per_channel": "likewise",
}
"""What differs, and why that is right: names of tests."""


# ---- in the process of some files


def in_form(form: str) -> None:
    """Makes onnxruntime's class of sessions the form's. drop-in has its way by the text of the tests, exec by the
    command."""
    if form == "patched":
        import ort_gpu_ep

        ort_gpu_ep.patch(say=False)
    elif form == "by-name":
        import onnxruntime

        import ort_gpu_ep

        ort_gpu_ep.register()
        onnxruntime.InferenceSession = _named(onnxruntime.InferenceSession, ort_gpu_ep.EP_NAME)  # type: ignore[misc]


def _named(plain: Any, ours: str) -> Any:
    """onnxruntime's class, whose lists of providers begin with ours."""

    class Named(plain):  # type: ignore[misc]
        def __init__(
            self,
            model: Any,
            sess_options: Any = None,
            providers: Any = None,
            provider_options: Any = None,
            **named: Any,
        ) -> None:
            if sess_options is None or not (sess_options.has_providers() or sess_options.optimized_model_filepath):
                names = list(providers or ["CPUExecutionProvider"])
                if not any(ours in (name, name[0]) for name in names):
                    names.insert(0, ours)
                    provider_options = provider_options and [{}, *provider_options]
                providers = names
            super().__init__(model, sess_options, providers, provider_options, **named)

    Named.__name__ = plain.__name__
    return Named


class Counted:
    """A plugin of pytest's: how often the GPU ran a partition."""

    def __init__(self, states: list[Any]) -> None:
        self.states = states
        self.runs = 0

    def pytest_runtest_teardown(self) -> None:
        self.runs += sum(partition.runs for state in self.states for partition in state.partitions)
        self.states.clear()


def run_here(form: str, results: Path, files: list[str]) -> None:
    """Of these files: pytest's XML at `results`, the GPU's runs beside it."""
    import pytest

    arguments = [
        "-q",
        "--continue-on-collection-errors",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        f"--junitxml={results}",
        *files,
    ]
    logging.getLogger("ort_gpu_ep").setLevel(logging.CRITICAL)
    in_form(form)
    if form == "plain":
        sys.exit(pytest.main(arguments))
    from ort_gpu_ep import plugin

    with plugin.capture() as states:
        counted = Counted(states)
        code = pytest.main(arguments, plugins=[counted])
    results.with_suffix(".json").write_text(json.dumps(counted.runs), "utf-8")
    sys.exit(code)


# ---- all files, in processes


def as_drop_in(folder: Path) -> None:
    """Where the tests import onnxruntime they import this package."""
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        changed = re.sub(r"(?m)^(\s*)import onnxruntime$", r"\1import ort_gpu_ep as onnxruntime", text)
        changed = re.sub(r"(?m)^(\s*)import onnxruntime as", r"\1import ort_gpu_ep as", changed)
        changed = re.sub(r"(?m)^(\s*)from onnxruntime import", r"\1from ort_gpu_ep import", changed)
        path.write_text(changed, "utf-8")


def groups(tests: Path, select: str) -> list[list[Path]]:
    """Files of one process each: those of quantization together."""
    there = [path for path in sorted(tests.glob("python/**/*.py")) if re.search(select, path.name)]
    alone = [[path] for path in there if path.name.startswith("onnxruntime_test_python")]
    together = [path for path in there if path.parent.name == "quantization" and path.name.startswith("test_")]
    return [*alone, *([together] if together else [])]


class Run:
    """All files in one form, by one interpreter. outcomes: of each test. gpu_runs: of partitions."""

    def __init__(self, tests: Path, python: str, form: str, options: list[str], select: str) -> None:
        self.python, self.form, self.options = python, form, options
        self.outcomes: dict[str, str] = {}
        self.gpu_runs = 0
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            copy = self.folder / "onnxruntime" / "test"
            shutil.copytree(tests, copy, ignore=shutil.ignore_patterns("transformers", "__pycache__"))
            if form == "drop-in":
                as_drop_in(copy / "python")
            for files in groups(copy, select):
                self._run(files)

    def _run(self, files: list[Path]) -> None:
        """In one process; where that ends early, by halves."""
        results, work = self.folder / "results.xml", self.folder / "work"
        results.unlink(missing_ok=True)
        work.mkdir(exist_ok=True)
        command = [self.python, __file__, "--here", self.form, "--results", str(results), *map(str, files)]
        if self.form == "exec":
            command = [
                self.python,
                "-m",
                "ort_gpu_ep",
                "exec",
                *[text for o in self.options for text in ("-o", o)],
                "--",
                *command,
            ]
        variables = {f"ORT_GPU_EP_{name.upper()}": value for name, _, value in (o.partition("=") for o in self.options)}
        environment = {
            **os.environ,
            **variables,
            "PYTHONPATH": str(ROOT),
            "ORT_GPU_EP_CACHE_DIR": str(self.folder / "cache"),
        }
        try:
            done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
            ended = f"ended with {done.returncode}: {done.stderr[-300:]}"
        except subprocess.TimeoutExpired:
            ended = "took too long"
        if results.exists():
            self.outcomes.update(outcomes(results))
            counted = results.with_suffix(".json")
            self.gpu_runs += json.loads(counted.read_text("utf-8")) if counted.exists() else 0
        elif len(files) > 1:
            self._run(files[: len(files) // 2])
            self._run(files[len(files) // 2 :])
        else:
            self.outcomes[f"{files[0].stem}::the process"] = ended


def outcomes(results: Path) -> Iterator[tuple[str, str]]:
    """(test, "passed", "skipped" or why it failed)."""
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error")]
        text = (
            bad[0].get("message", "failed")[:200]
            if bad
            else "skipped"
            if case.find("skipped") is not None
            else "passed"
        )
        yield f"{case.get('classname')}::{case.get('name')}", text


def show(version: str, plain: Run, run: Run) -> int:
    """A row of the table and a line for each test that differs. How many were not expected."""
    passed = {name for name, outcome in plain.outcomes.items() if outcome == "passed"}
    lost = {name: run.outcomes.get(name, "is not there") for name in passed if run.outcomes.get(name) != "passed"}
    crashed = {
        name: why for name, why in run.outcomes.items() if name.endswith("the process") and name not in plain.outcomes
    }
    known = [name for name in lost if name.rpartition("::")[2] in EXPECTED]
    row = (version, run.form, len(passed), len(passed) - len(lost), run.gpu_runs, len(known), len(lost) - len(known))
    print(f"| {' | '.join(map(str, row))} |", flush=True)
    for name, why in {**crashed, **lost}.items():
        print(f"    {name}: {' '.join(why.split())}", flush=True)
    return len(lost) - len(known) + len(crashed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", action="append")
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--option", action="append")
    parser.add_argument("--select", default="")
    parser.add_argument("--here", help=argparse.SUPPRESS)  # the process of some files
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="+")
    asked = parser.parse_args()
    if asked.here:
        run_here(asked.here, asked.results, asked.paths)
    tests, options = Path(asked.paths[0]).resolve(), asked.option or ["placement=gpu", "load=off"]
    unexpected = 0
    print(
        "| onnxruntime | form | pass alone | pass here | runs on the GPU | differ as expected | differ "
        "|\n|---|---|---|---|---|---|---|"
    )
    for python in asked.python or [sys.executable]:
        asks = [python, "-c", "import onnxruntime; print(onnxruntime.__version__)"]
        version = subprocess.run(asks, capture_output=True, text=True, check=True).stdout.strip()
        plain = Run(tests, python, "plain", [], asked.select)
        counts = Counter(
            outcome if outcome in ("passed", "skipped") else "failed" for outcome in plain.outcomes.values()
        )
        print(f"    onnxruntime {version} alone: {dict(counts)}", flush=True)
        unexpected += sum(
            show(version, plain, Run(tests, python, form, options, asked.select)) for form in asked.form or FORMS
        )
    sys.exit(bool(unexpected))


if __name__ == "__main__":
    main()
