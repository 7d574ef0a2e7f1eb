"""The script that starts every helper process: python -s -P launch.py PLACES MODULE ARGUMENT... (child.py makes that
line).

It runs MODULE as `python -m` would, without the current folder in `sys.path`: nothing that lies there is imported.
"""

import json
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class Pinned:
    """A finder that takes packages from these folders and from nowhere else. folders: of each top-level name."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for what is not pinned, or not there any more: the others look then."""
        return PathFinder.find_spec(name, [self._folders[name]]) if name in self._folders else None


def main() -> None:
    """PLACES: JSON, `path` and `rest` to begin and to end `sys.path` with, and `folders` of packages."""
    places = json.loads(sys.argv[1])
    sys.path[:] = dict.fromkeys([*places["path"], *sys.path, *places["rest"]])
    sys.meta_path.insert(0, Pinned(places["folders"]))
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
