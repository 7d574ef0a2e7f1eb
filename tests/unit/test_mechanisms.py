"""How many mechanisms the package has for one thing, so that none comes back: `python -m tests.unit.test_mechanisms`
prints the counts.

A count may go down, and MOST with it. Whoever has to raise one says why in a decision.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ort_gpu_ep"

MOST = {
    "floors of webgpu": 7,
    "floors of device": 8,
    "floors of runtime": 8,
    "floors of plugin": 8,
    "floors of any other folder": 8,
    "functions that record ahead": 1,
    "owners that are told of waits": 4,
    "places that submit a plan": 4,
    "caches of runs": 6,
    "makers of plans in the background": 1,
    "files of ops that list what is made once": 2,
    "files of ops that add up parts of K": 1,
    "stores on disk for a known model": 2,
    "names that are participles": 24,
    "tuned numbers outside ops": 326,
    "private members used by tests": 288,
}
"""What there may be of each."""

RECORDERS = ("record_ahead", "_record_ahead")
WAITS = ("while_waiting",)
"""What `Gpu.on_wait` has called: who knows which run comes next."""
CACHES = ("OrderedDict", "WeakValueDictionary", "WeakKeyDictionary", "WeakSet", "Memo", "Cache")
SUBMISSIONS = ("execute", "run", "enqueue", "submit")
"""Methods of a Gpu that take command buffers."""
ONCE = ("once", "inverses")
"""Of a Lowering: `completed` finds them. A builder names what is made of nothing, a composed one hands on."""
PARTICIPLES = ("found", "made", "given", "known", "wanted", "held")


@cache
def trees(folder: Path) -> dict[str, ast.Module]:
    """Dotted name below the folder's parent -> syntax tree, of each module."""
    return {
        ".".join(p.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            p.read_text("utf-8")
        )
        for p in sorted(folder.rglob("*.py"))
    }


def imported(node: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports when it runs; what is for type checkers alone is left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
            yield child.module or ""
        yield from imported(child)


def floors(edges: dict[str, set[str]]) -> int:
    """Modules on the longest way of imports, which make no circle."""

    @cache
    def height(module: str) -> int:
        return 1 + max((height(other) for other in edges[module]), default=0)

    return max(map(height, edges))


def floors_of(folder: str) -> int:
    """Of the modules directly in a folder of the package."""
    there = {
        name: tree
        for name, tree in trees(PACKAGE).items()
        if name.split(".")[1:2] == [folder] and len(name.split(".")) > 2
    }
    return floors(
        {name: {other for other in imported(tree) if other in there} - {name} for name, tree in there.items()}
    )


def nodes(*kinds: type[ast.AST], folders: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.AST]]:
    """(module, node) of these kinds. folders: only in these."""
    for name, tree in trees(PACKAGE).items():
        if not folders or (name.split(".")[1:2] and name.split(".")[1] in folders):
            yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kinds))


def is_number(node: ast.AST | None) -> bool:
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def tuned_numbers() -> int:
    """Constants of modules that are numbers, outside of the rows and of the cost model's parameters."""
    modules = (
        tree for name, tree in trees(PACKAGE).items() if ".ops" not in name and not name.endswith("cost_parameters")
    )
    return sum(isinstance(n, ast.Assign | ast.AnnAssign) and is_number(n.value) for tree in modules for n in tree.body)


def private_uses() -> int:
    """Attributes with one leading underscore that tests read of anything but themselves."""
    return sum(
        isinstance(n, ast.Attribute)
        and n.attr.startswith("_")
        and not n.attr.startswith("__")
        and not (isinstance(n.value, ast.Name) and n.value.id in ("self", "cls"))
        for name, tree in trees(ROOT / "tests").items()
        if name.rpartition(".")[2].startswith("test_")
        for n in ast.walk(tree)
    )


def made_of(kinds: tuple[str, ...], *folders: str) -> int:
    """How many objects of these classes modules of these folders make."""
    calls = (n.func for _, n in nodes(ast.Call, folders=folders) if isinstance(n, ast.Call))
    return sum(ast.unparse(f.value if isinstance(f, ast.Subscript) else f).rpartition(".")[2] in kinds for f in calls)


def counts() -> dict[str, int]:
    folders = {name.split(".")[1] for name in trees(PACKAGE) if len(name.split(".")) > 2}
    apart = ("webgpu", "device", "runtime", "plugin")
    calls = [
        n.func
        for _, n in nodes(ast.Call, folders=("runtime", "plugin"))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in SUBMISSIONS
    ]
    return {
        **{f"floors of {folder}": floors_of(folder) for folder in apart},
        "floors of any other folder": max(floors_of(folder) for folder in folders - set(apart)),
        "functions that record ahead": sum(
            n.name in RECORDERS for _, n in nodes(ast.FunctionDef) if isinstance(n, ast.FunctionDef)
        ),
        "owners that are told of waits": sum(
            n.name in WAITS
            for name, n in nodes(ast.FunctionDef)
            if isinstance(n, ast.FunctionDef) and ".device." not in name
        ),
        "places that submit a plan": sum(ast.unparse(f.value).endswith("gpu") for f in calls),
        "caches of runs": made_of(CACHES, "runtime", "plugin"),
        "makers of plans in the background": sum(
            ast.unparse(n.func) == "background.background.add"
            for _, n in nodes(ast.Call, folders=("runtime",))
            if isinstance(n, ast.Call)
        ),
        "files of ops that list what is made once": len(
            {name for name, n in nodes(ast.keyword, folders=("ops",)) if isinstance(n, ast.keyword) and n.arg in ONCE}
        ),
        "files of ops that add up parts of K": len(
            {
                name
                for name, n in nodes(ast.Name, folders=("ops",))
                if isinstance(n, ast.Name) and n.id == "LAST_ARRIVING"
            }
        ),
        "stores on disk for a known model": sum(
            isinstance(n, ast.BinOp) and ast.unparse(n.left).startswith("Path(") and isinstance(n.right, ast.Constant)
            for _, n in nodes(ast.BinOp, folders=("runtime", "plugin"))
        ),
        "names that are participles": sum(
            isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in PARTICIPLES for _, n in nodes(ast.Name)
        ),
        "tuned numbers outside ops": tuned_numbers(),
        "private members used by tests": private_uses(),
    }


@pytest.mark.parametrize("what", MOST)
def test_no_mechanism_comes_back(what: str) -> None:
    assert cached_counts()[what] <= MOST[what]


def test_all_that_is_counted_is_bounded() -> None:
    assert list(cached_counts()) == list(MOST)


cached_counts = cache(counts)


def test_floors_see_a_tower() -> None:
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == 3
    assert floors({"a": set(), "b": set()}) == 1


if __name__ == "__main__":
    for what, count in counts().items():
        print(f"{count:6d} of {MOST.get(what, 0):6d}  {what}")
