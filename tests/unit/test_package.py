"""The package as a whole: version, public names, and which module may import which."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime
import pytest

import ort_gpu_ep
from ort_gpu_ep.__main__ import PACKAGES
from ort_gpu_ep.providers import CPU_PROVIDER, EP_NAME

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ort_gpu_ep"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")


def block(name: str) -> list[str]:
    found = re.search(rf"^```{name}\n(.*?)^```", ARCHITECTURE, re.M | re.S)
    assert found, f"docs/ARCHITECTURE.md has no block {name}"
    return found.group(1).splitlines()


ALLOWED = {
    name: set(right.split()) for left, right in (line.split("<-") for line in block("imports")) for name in left.split()
}
ONLY = {line.split()[0]: set(line.split()[1:]) for line in block("only")}


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of each import, also inside functions and for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        yield from imports(node)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def part(dotted: str) -> str:
    """`ops` for ort_gpu_ep.ops.softmax; `` for the package itself."""
    return dotted.split(".")[1] if "." in dotted else ""


def offences(source: str, owner: str) -> list[str]:
    """What a module of the part `owner` imports, and may not."""
    found = []
    for name, line in imports(ast.parse(source)):
        top = name.split(".")[0]
        if top == "ort_gpu_ep" and part(name) not in {owner, *ALLOWED[owner]}:
            found.append(f"line {line}: {owner} may not import {name}")
        if owner not in ONLY.get(top, {owner}):
            found.append(f"line {line}: {owner} may not import {top}")
    return found


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_layers(path: Path) -> None:
    owner = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert owner in ALLOWED, f"{owner} is not in the table of docs/ARCHITECTURE.md"
    assert offences(path.read_text("utf-8"), owner) == []


def test_layers_see_offences() -> None:
    source = (
        "from ort_gpu_ep.device import Gpu\ndef f():\n    import wgpu.utils\nif TYPE_CHECKING:\n    import onnxruntime"
    )
    assert offences(source, "ops") == [
        "line 1: ops may not import ort_gpu_ep.device.Gpu",
        "line 3: ops may not import wgpu",
        "line 5: ops may not import onnxruntime",
    ]


def test_the_table_has_no_cycle_and_no_stranger() -> None:
    done: set[str] = set()
    while ready := [p for p, needs in ALLOWED.items() if p not in done and needs <= done]:
        done.update(ready)
    assert done == set(ALLOWED)
    there = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in MODULES}
    assert there == set(ALLOWED)


def circles(edges: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """The groups of modules in which each reaches each other one."""

    def reach(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            new = edges[left.pop()] - found
            found |= new
            left += new
        return found

    reached = {name: reach(name) for name in edges}
    return {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in edges
        if name in reached[name]
    }


def test_circles_see_a_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {("b", "c")}


def test_no_circle_of_modules() -> None:
    """Not even for type checkers: what imports each other can't be read one after the other."""
    names = {".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): p for p in MODULES}
    edges: dict[str, set[str]] = {}
    for name, path in names.items():
        wanted = [dotted.removeprefix("ort_gpu_ep.") for dotted, _ in imports(tree_of(path))]
        edges[name] = {n for w in wanted if (n := w if w in names else w.rpartition(".")[0]) in names} - {name}
    assert not circles(edges)


@cache
def members(definition: ast.ClassDef) -> set[str]:
    """Methods and attributes that a class itself has."""
    found = set[str]()
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


@cache
def bases(definition: ast.ClassDef) -> set[str]:
    return {
        b.id if isinstance(b, ast.Name) else b.attr for b in definition.bases if isinstance(b, ast.Name | ast.Attribute)
    }


def lone_implementations(trees: dict[str, ast.Module]) -> dict[tuple[str, str], str]:
    """(module, name) of each Protocol that one class alone implements, those derived from it aside -> the module of
    that class."""
    classes = {
        (module, n.name): n for module, tree in trees.items() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)
    }

    def ancestors(definition: ast.ClassDef) -> list[ast.ClassDef]:
        named = [other for (_, name), other in classes.items() if name in bases(definition) and other is not definition]
        return [*named, *(more for other in named for more in ancestors(other))]

    protocols = {key: c for key, c in classes.items() if "Protocol" in bases(c)}
    found = {}
    for key, protocol in protocols.items():
        wanted = {m for c in (protocol, *ancestors(protocol)) for m in members(c)}
        fitting = [
            (module, c)
            for (module, _), c in classes.items()
            if "Protocol" not in bases(c) and wanted <= {m for each in (c, *ancestors(c)) for m in members(each)}
        ]
        roots = [module for module, c in fitting if not any(a is other for a in ancestors(c) for _, other in fitting)]
        if len(roots) == 1:
            found[key] = roots[0]
    return found


TIED = {("plugin.state", "Compiled"), ("isolation.remote", "Member")}
"""Protocols that still hide a circle. One that is gone is taken out here; none is added."""


def test_lone_implementations_are_seen() -> None:
    source = (
        "class P(Protocol):\n    size: int\n    def f(self): ...\nclass A:\n    def __init__(self): self.size = 1\n    "
        "def f(self): ...\n"
        "class B(A):\n    def f(self): ...\n"
    )
    other = "class C:\n    size = 2\n    def f(self): ...\n"
    assert lone_implementations({"m": ast.parse(source)}) == {("m", "P"): "m"}
    assert lone_implementations({"m": ast.parse(source), "n": ast.parse(other)}) == {}


def test_no_circle_hides_behind_a_protocol() -> None:
    """A Protocol that only one class implements stands for that class: drawn as an import of it, it makes no circle of
    a folder's modules.

    Between folders it is how a lower one names what a higher one gives it.
    """
    trees = {".".join(p.relative_to(PACKAGE).with_suffix("").parts): tree_of(p) for p in MODULES}
    edges: dict[str, set[str]] = {}
    for name, tree in trees.items():
        wanted = [dotted.removeprefix("ort_gpu_ep.") for dotted, _ in imports(tree)]
        edges[name] = {n for w in wanted if (n := w if w in trees else w.rpartition(".")[0]) in trees} - {name}
    hidden = {
        key: implementing
        for key, implementing in lone_implementations(trees).items()
        if key[0].rpartition(".")[0] == implementing.rpartition(".")[0] and key[0] != implementing
    }
    for (module, _), implementing in hidden.items():
        edges[module].add(implementing)
    tied = {module for circle in circles(edges) for module in circle}
    assert {key for key, implementing in hidden.items() if {key[0], implementing} <= tied} == TIED


@pytest.mark.parametrize("name", [EP_NAME, CPU_PROVIDER])
def test_a_provider_is_named_once(name: str) -> None:
    """Messages may speak of it."""
    named = [
        path.name
        for path in MODULES
        for each in ast.walk(tree_of(path))
        if isinstance(each, ast.Constant) and each.value == name
    ]
    assert named == ["providers.py"]


def test_ops_take_no_device_text() -> None:
    """Of the shaders, rows use pure functions only: composing is the device's business."""
    for path in (PACKAGE / "ops").glob("*.py"):
        names = {name for name, _ in imports(ast.parse(path.read_text("utf-8")))}
        assert not {
            n
            for n in names
            if n.startswith("ort_gpu_ep.shaders") and n.endswith((".compose", ".grid", ".body", ".library"))
        }, path


def test_version() -> None:
    assert ort_gpu_ep.__version__ == PROJECT["version"]
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_public_names_are_sorted_and_complete() -> None:
    """In ruff's order: constants, classes, the rest. Every exception of errors.py is public, but for the base of
    none."""
    names = ort_gpu_ep.__all__
    kind = {n: 0 if n.isupper() else 1 if n[0].isupper() else 2 for n in names}
    assert names == sorted(names, key=lambda n: (kind[n], n))
    assert len(set(names)) == len(names)
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    imported = {
        a.name
        for n in tree.body
        for m in ast.walk(n)
        if isinstance(n, ast.If | ast.ImportFrom)
        and isinstance(m, ast.ImportFrom)
        and (m.module or "").startswith(("ort_gpu_ep", "onnxruntime"))
        for a in m.names
        if a.asname is None
    }
    assert set(names) == imported | {"__version__"}
    errors = ast.parse((PACKAGE / "errors.py").read_text("utf-8"))
    assert {n.name for n in errors.body if isinstance(n, ast.ClassDef)} - {"Code"} <= set(names)


def test_public_names_can_be_imported() -> None:
    for name in ort_gpu_ep.__all__:
        assert hasattr(ort_gpu_ep, name), name
    assert ort_gpu_ep.SessionOptions is not None  # onnxruntime's, passed through
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        _ = ort_gpu_ep.Sesion


def test_what_onnxruntime_offers_is_declared() -> None:
    """For type checkers, completion and `import *`. A later onnxruntime may have more, which can be reached all the
    same."""
    source = (PACKAGE / "__init__.py").read_text("utf-8")
    declared = {
        a.name
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.ImportFrom) and n.module == "onnxruntime"
        for a in n.names
    }
    theirs = {
        n for n, value in vars(onnxruntime).items() if not n.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(dir(ort_gpu_ep)) >= {*ort_gpu_ep.__all__, "SessionOptions", "InferenceSession"}
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) <= (1, 31):
        assert theirs - {"InferenceSession", "get_available_providers"} <= declared  # which are ours


def test_everything_can_be_imported_at_once() -> None:
    names: dict[str, Any] = {}
    exec("from ort_gpu_ep import *", names)
    assert names["InferenceSession"] is ort_gpu_ep.InferenceSession
    assert names["SessionOptions"] is onnxruntime.SessionOptions


USER = """
import ort_gpu_ep as ort

def main(model: str) -> str:
    options = ort.SessionOptions()
    session = ort.InferenceSession(model, options, provider_options={"placement": "gpu"})
    session.explain().count("gpu")
    with ort.patch({"placement": "gpu"}):
        pass
    ort.nonsense
    session.explain().nonsense
    return str(ort.get_version_string())
"""


def test_a_type_checker_knows_the_names(tmp_path: Path) -> None:
    """Strictly, with the settings of this project, whose cache it shares. Of a user's program: the oldest numpy's types
    are others than ours."""
    (tmp_path / "user.py").write_text(USER)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            ROOT / "pyproject.toml",
            "--no-error-summary",
            tmp_path / "user.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    said = [line.split("error: ")[1] for line in done.stdout.splitlines() if "user.py:" in line]
    assert said == [
        'Module has no attribute "nonsense"  [attr-defined]',
        '"Explanation" has no attribute "nonsense"  [attr-defined]',
    ], done.stdout


def without(package: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a program where a package is not installed."""
    code = f"import sys\nsys.modules[{package!r}] = None\nsys.argv[1:] = {list(arguments)}\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_command_lines_packages(package: str) -> None:
    done = without(package, "from ort_gpu_ep.__main__ import main; main()", "options")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ort-gpu-ep: the package {package} is not installed. Try: pip install typer rich\n"
    done = without(package, "import ort_gpu_ep; print(ort_gpu_ep.InferenceSession.__name__)")
    assert done.stdout == "InferenceSession\n", done.stderr


def test_without_onnxruntime(tmp_path: Path) -> None:
    for name in ("InferenceSession", "SessionOptions", "register"):
        done = without("onnxruntime", f"import ort_gpu_ep; ort_gpu_ep.{name}")
        assert done.returncode == 1
        assert "ort_gpu_ep needs ONNX Runtime, which is not installed" in done.stderr.splitlines()[-1], done.stderr
        assert "pip install 'onnxruntime>=1.26', or onnxruntime-gpu" in done.stderr.splitlines()[-1]
    model = tmp_path / "model.onnx"
    model.touch()
    done = without("onnxruntime", "from ort_gpu_ep.__main__ import main; main()", "run", str(model))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("pip install 'onnxruntime>=1.26', or another build of ONNX Runtime\n")
    assert len(done.stderr.splitlines()) == 1


def test_a_plain_installation_brings_neither() -> None:
    names = {re.split("[<>=]", d)[0] for d in PROJECT["dependencies"]}
    assert not names & {"onnxruntime", *PACKAGES}
    extras = PROJECT["optional-dependencies"]
    assert {re.split("[<>=]", d)[0] for extra in ("cli", "onnxruntime") for d in extras[extra]} == set(PACKAGES)


LOADED = """
import json, os, sys
import numpy, onnx, psutil

def told(modules, theirs):
    ends, begins = os.pipe()
    if not os.fork():
        for name in modules:
            __import__(name)
        loaded = {".".join(m.split(".")[:2]) for m in list(sys.modules) if m.startswith("ort_gpu_ep.")} | {m for m in theirs if m in sys.modules}
        os.write(begins, json.dumps(sorted(loaded)).encode())
        os._exit(0)
    os.close(begins)
    with os.fdopen(ends) as pipe:
        said = pipe.read()
    assert os.wait()[1] == 0, modules
    return json.loads(said)

asked, theirs = json.loads(sys.argv[1])
print(json.dumps({name: told(modules, theirs) for name, modules in asked.items()}))
"""
"""What the modules of each part bring along, each in a process in which nothing of ours has been imported before."""

LIGHT = (
    "ort_gpu_ep.isolation.worker",
    "ort_gpu_ep.health.worker",
    "ort_gpu_ep.scheduler.planner",
    "ort_gpu_ep.partitioner.decide",
)
"""What does without onnxruntime, although what it may import may import that."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """By part, and by module of LIGHT: which parts and which packages of others are there after its import."""
    asked = {name: [name] for name in LIGHT}
    for path in MODULES:
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        # those run when they are imported
        if path.stem.isidentifier() and path.stem != "__main__" and part(dotted) not in ("hook", "__pyinstaller"):
            asked.setdefault(part(dotted), []).append(dotted)
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps([asked, sorted(ONLY)])],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return {name: set(found) for name, found in json.loads(done.stdout).items()}


def reached(name: str) -> set[str]:
    """A part, and all that its imports lead to."""
    found, ahead = set[str](), [name]
    while ahead:
        if (this := ahead.pop()) not in found:
            found.add(this)
            ahead += ALLOWED[this]
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each part is imported in a fork of one process")
def test_layers_hold_at_run_time(loaded: dict[str, set[str]]) -> None:
    """Not only in the text: `from ort_gpu_ep.ir import contrib` asked the package for that name, which imported
    onnxruntime to look there."""
    wrong = {}
    for name in loaded.keys() - set(LIGHT):
        parts = reached(name) | {"errors"}  # the package itself has them
        theirs = {package for package, owners in ONLY.items() if owners & parts}
        wrong[name] = {
            m
            for m in loaded[name]
            if (m.split(".")[1] not in parts if m.startswith("ort_gpu_ep.") else m not in theirs)
        }
    assert {name: found for name, found in wrong.items() if found} == {}
    assert {name: loaded[name] & {"onnxruntime", "typer"} for name in LIGHT} == {name: set() for name in LIGHT}


def test_import_is_lazy() -> None:
    """Tools that need no GPU don't load its driver."""
    heavy = ("wgpu", "onnxruntime", "onnx", "typer", "pyarrow", "ray")
    code = f"import sys, ort_gpu_ep, ort_gpu_ep.scoring; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_exists() -> None:
    target = PROJECT["scripts"]["ort-gpu-ep"]
    module, _, name = target.partition(":")
    assert callable(getattr(import_module(module), name))
    assert "models" not in str(PROJECT.get("packages", ""))


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their names alone: of two that are equal it collects one, and the other is an error."""
    names = [f.name for f in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_where_onnxruntime_aborts_is_printed() -> None:
    """As its shape inference does for some malformed models, a Split of more outputs than its num_outputs, say."""
    code = "import os\nfrom ort_gpu_ep import cli\ncli.app = os.abort\nfrom ort_gpu_ep.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stderr.startswith("Fatal Python error: Aborted"), done.stderr
    assert "__main__.py" in done.stderr


def test_pyinstaller_finds_the_hook() -> None:
    module, _, function = PROJECT["entry-points"]["pyinstaller40"]["hook-dirs"].partition(":")
    (folder,) = getattr(import_module(module), function)()
    assert {p.name for p in Path(folder).iterdir() if not p.name.startswith("__")} == {
        "hook-ort_gpu_ep.py",
        "rthooks",
        "rthooks.dat",
    }
    for hooks in ast.literal_eval(Path(folder, "rthooks.dat").read_text("utf-8")).values():
        assert all(Path(folder, "rthooks", hook).is_file() for hook in hooks)
