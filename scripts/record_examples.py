"""Writes what the examples of docs/ print: each block of Python that a block of text follows is run, on Mesa's software
driver.

usage: python scripts/record_examples.py [PAGE ...]      (without PAGE: all of them; tests/cli/test_recorded_examples.py compares)
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

import onnx

from models.encoder_decoder import save_folder
from models.language import language_model
from scripts import record_commands

DOCS = Path(__file__).resolve().parents[1] / "docs"
EXAMPLE = re.compile(r"^```python\n((?:(?!```)[^\n]*\n)*)```\n\n```text\n(.*?)^```\n", re.M | re.S)


def pages() -> list[str]:
    """Names of the documents with examples."""
    return [path.name for path in sorted(DOCS.glob("*.md")) if EXAMPLE.search(path.read_text("utf-8"))]


def make_files(folder: Path) -> None:
    """What the examples open: those of the commands, and small decoders with random weights, one with its encoder."""
    record_commands.make_files(folder)
    onnx.save(
        language_model(layers=2, width=64, heads=4, groups=2, hidden=64, vocabulary=100, context=64),
        folder / "decoder.onnx",
    )
    save_folder(folder)


def printed(code: str, where: str) -> str:
    """What a program prints, run in this folder as the main one."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, where, "exec"), {"__name__": "__main__"})
    return "".join(f"{line.rstrip()}\n" for line in said.getvalue().splitlines())


def recorded(page: str, folder: Path) -> str:
    """The document with what its examples print. They run in their order, in `folder`, which make_files has filled."""

    def with_output(match: re.Match[str]) -> str:
        return f"```python\n{match[1]}```\n\n```text\n{printed(match[1], page)}```\n"

    with contextlib.chdir(folder):
        return EXAMPLE.sub(with_output, (DOCS / page).read_text("utf-8"))


def main(wanted: list[str]) -> None:
    unknown = sorted(set(wanted) - set(pages()))
    if unknown:
        sys.exit(f"record_examples.py: no examples in {', '.join(unknown)}; there are some in {', '.join(pages())}")
    for page in wanted or pages():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ORT_GPU_EP_CACHE_DIR"] = folder
            make_files(Path(folder))
            (DOCS / page).write_text(recorded(page, Path(folder)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
