"""Prints requirements for pip: this checkout, editable, with some extras, and dependency groups (PEP 735), which an
older pip can't read.

usage: python scripts/requirements.py NAME,NAME...      (extras or dependency groups of pyproject.toml)
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def requirements(names: list[str]) -> list[str]:
    """Raises SystemExit for a name that is neither an extra nor a group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    unknown = [name for name in names if name not in extras and name not in groups]
    if unknown:
        sys.exit(
            f"requirements.py: no extra or dependency group {', '.join(unknown)}; there are "
            f"{', '.join((*extras, *groups))}"
        )
    wanted = ",".join(name for name in names if name in extras)
    return [
        f"--editable .{f'[{wanted}]' if wanted else ''}",
        *(line for name in names if name in groups for line in groups[name]),
    ]


if __name__ == "__main__":
    print("\n".join(requirements([name for name in sys.argv[1].split(",") if name])))
