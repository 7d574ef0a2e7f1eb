"""For PyInstaller, which asks by the entry point `pyinstaller40`: where the hook is that puts this package into a
program."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    return [str(Path(__file__).parent)]
