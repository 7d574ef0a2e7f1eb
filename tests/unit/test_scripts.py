"""The scripts of contributors: which tests they run, and what they say of tests that are not there."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import changed
from tests.patience import until

ROOT = Path(__file__).resolve().parents[2]
ROWS = '''"""Two rows."""

import re

SIZE = 4


@op("First", dtypes={})
def first(node):
    return helper(node)


@case(
    "Second", version=3)
def second(node):
    x = 1

    return x


def helper(node):
    return node
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One whose set-up leaves a mark, and whose pytest finds no test."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path / "scripts")
    (tmp_path / "python").write_text(
        f'#!/bin/sh\ncase "$2" in pytest) exit 5;; mypy) exec sleep 60;; esac\n{sys.executable} --version\n'
    )
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "scripts" / "setup.sh").write_text('echo > build/set-up\npython="$PWD/python"\n')
    return tmp_path


def run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", checkout / "scripts" / "test.sh", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(sys.platform == "win32", reason="a script for sh")
@pytest.mark.parametrize(
    "arguments",
    [["tests/none"], ["-x", "tests/none.py::test"], ["-k", "a name", "tests", "nowhere"], ["--maxfail=1", "none"]],
)
def test_a_path_that_is_not_there_is_told_before_anything_is_set_up(checkout: Path, arguments: list[str]) -> None:
    done = run(checkout, *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"test.sh: there is no file or folder {arguments[-1]}: give a path such as tests/unit")
    assert not (checkout / "build" / "set-up").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a script for sh")
@pytest.mark.parametrize(
    "arguments", [["-k", "no_such_name"], ["tests", "-m", "ray and gpu"], ["--maxfail", "3", "tests::test"]]
)
def test_a_selection_of_nothing_is_told_and_ends_the_script(checkout: Path, arguments: list[str]) -> None:
    """Without waiting for mypy, which takes a minute."""
    done = run(checkout, *arguments)
    assert (done.returncode, done.stderr) == (5, f"test.sh: no test is selected by: {' '.join(arguments)}\n")
    assert (checkout / "build" / "set-up").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a script for sh")
@pytest.mark.parametrize(("count", "alone", "status"), [(3, 0, 0), (3, 1, 1), (4, 0, 1)])
def test_three_failures_at_most_are_asked_again_alone_and_named(
    checkout: Path, count: int, alone: int, status: int
) -> None:
    (checkout / "python").write_text(
        f'#!/bin/sh\ncase "$*" in *last-failed*) exit {alone};; "-m pytest"*) exit 1;; *) exit 0;; esac\n'
    )
    failures = checkout / ".pytest_cache" / "v" / "cache" / "lastfailed"
    failures.parent.mkdir(parents=True)
    failures.write_text(json.dumps({f"tests/test_a.py::test_{k}": True for k in range(count)}, indent=2))
    done = run(checkout)
    assert done.returncode == status
    assert ("UNSTEADY" in done.stdout) == (status == 0)
    assert ("tests/test_a.py::test_2" in done.stdout) == (status == 0)
    assert ("failed: pytest" in done.stderr) == (status == 1)


@pytest.mark.skipif(sys.platform == "win32", reason="a script for sh")
@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        ([], "all,test"),
        (["-k", "tests"], "all,test"),
        (["tests"], "onnxruntime,cli,test,compress,scoring,plot"),
        (["tests/ops"], "onnxruntime,cli,test"),
        (["tests/ops/test_add.py::test"], "onnxruntime,cli,test"),
        (["-x", "tests/ops", "tests/small"], "onnxruntime,cli,test,compress"),
        (["tests/rows/test_rows.py"], "onnxruntime,cli,test,scoring"),
        (["tests/drawn/test_drawn.py"], "onnxruntime,cli,test,plot"),
    ],
)
def test_of_paths_only_what_their_tests_name_is_installed(checkout: Path, arguments: list[str], extras: str) -> None:
    for name, text in {
        "conftest.py": "import matplotlib",
        "ops/test_add.py": "import numpy",
        "small/test_small.py": "from sklearn import cluster",
        "rows/conftest.py": "import pyarrow",
        "rows/test_rows.py": "",
        "drawn/test_drawn.py": 'run("--plot")',
    }.items():
        (checkout / "tests" / name).parent.mkdir(exist_ok=True)
        (checkout / "tests" / name).write_text(text + "\n")
    (checkout / "scripts" / "setup.sh").write_text('echo "$extras" > build/set-up\npython="$PWD/python"\n')
    assert run(checkout, *arguments).returncode == 5
    assert (checkout / "build" / "set-up").read_text() == f"{extras}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="a script for sh")
@pytest.mark.parametrize(("log", "line"), [("build/pip.log", "Collecting numpy"), ("build/none.log", "a driver")])
def test_the_set_up_says_what_goes_on(tmp_path: Path, log: str, line: str) -> None:
    """Its last line of output, or a name; 170 seconds of the quick start were dots."""
    wait = re.search(
        r"^_wait\(\) \{.*?^\}", (ROOT / "scripts" / "setup.sh").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert wait is not None
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "pip.log").write_text("first\nCollecting numpy\n")
    script = f"""say() {{ echo "$*"; }}
        sleep() {{ echo >> turns; [ "$(wc -l < turns)" -lt 6 ] || {{ echo over > build/gate & }}; command sleep 0.05; }}
        {wait[0]}
        mkfifo build/gate; (read -r _ < build/gate; exit 3) & _wait $! {log} 'a driver'; echo "status $?" """
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    *lines, status = done.stdout.splitlines()
    assert lines[:2] == [f"  2 s: {line}", f"  4 s: {line}"]
    assert status == "status 3"


@pytest.mark.skipif(sys.platform == "win32", reason="a script for sh")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_the_quick_start_runs_ends_with_it(tmp_path: Path, number: int) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "quickstart.sh", tmp_path / "scripts")
    head, mark, _ = (ROOT / "scripts" / "setup.sh").read_text("utf-8").partition("trap 'exit 130' HUP INT TERM\n")
    (tmp_path / "scripts" / "setup.sh").write_text(f'{head}{mark}PATH="$PWD:$PATH"\n')
    (tmp_path / "ort-gpu-ep").write_text("#!/bin/sh\necho pid $$\nexec sleep 600\n")
    (tmp_path / "ort-gpu-ep").chmod(0o755)
    with subprocess.Popen(["sh", tmp_path / "scripts" / "quickstart.sh"], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        pid = next(int(line.split()[1]) for line in script.stdout if line.startswith("pid"))
        script.send_signal(number)
        assert script.wait(60) == 130
        until(lambda: not is_there(pid))


def is_there(pid: int) -> bool:
    """Whether a process runs; one that nobody waited for has ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return False


def test_the_ops_of_changed_lines() -> None:
    where = {
        word: ROWS[: ROWS.index(word)].count("\n") + 1
        for word in ("return helper", "@case", "return x", "return node", "SIZE")
    }
    assert changed.ops_at(ROWS, [where["return helper"]]) == ["First"]
    assert changed.ops_at(ROWS, [where["@case"]]) == changed.ops_at(ROWS, [where["return x"]]) == ["Second"]
    assert changed.ops_at(ROWS, [where["return x"], where["return helper"]]) == ["First", "Second"]
    assert changed.ops_at(ROWS, [where["SIZE"]]) == changed.ops_at(ROWS, [where["return node"]]) == ["First", "Second"]


def test_tests_that_name_the_op_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "ort_gpu_ep/ops/ordered.py"
    text = (ROOT / module).read_text("utf-8")
    monkeypatch.setattr(
        changed, "git", lambda *arguments: [f"@@ -9 +{text[: text.index('def top_k(')].count(chr(10)) + 2},2 @@ def"]
    )
    tests = changed.of_file(module)
    assert all("TopK" in (ROOT / file).read_text("utf-8") for file in tests[: tests.index(changed.EVERYWHERE[0])])
    assert set(changed.of_module(module)) <= set(tests)


def test_lines_of_a_diff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        changed,
        "git",
        lambda *arguments: ["--- a", "+++ b", "@@ -3 +4 @@ x", "+a", "@@ -9,2 +11,0 @@", "-b", "@@ -20,0 +30,3 @@"],
    )
    assert changed.changed_lines("any", "HEAD") == [4, 11, 30, 31, 32]
