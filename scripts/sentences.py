"""Prints sentences taken at random from README and the documents, to be read by somebody who does not know the code.

usage: python scripts/sentences.py [COUNT] [SEED]
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("OPERATORS.md", "modules.md", "commands.md", "api.md")  # generated
MIN_WORDS = 6


def sentences(text: str) -> list[str]:
    """The sentences of a Markdown text, without tables, code blocks and headings."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.S)
    lines = [
        "" if line.lstrip().startswith(("|", "#", "!")) else re.sub(r"^\s*([-*]|\d+\.) ", "\n\n", line)
        for line in text.splitlines()
    ]
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", "\n".join(lines))]
    found = [part for block in blocks for part in re.split(r"(?<=[.!?:])(?<!e\.g\.) (?=[A-Z`*(\[])", block)]
    return [part for part in found if len(part.split()) >= MIN_WORDS]


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.name not in LEFT_OUT)]


def main(count: int = 30, seed: int = 22) -> None:
    found = [(path.name, sentence) for path in documents() for sentence in sentences(path.read_text("utf-8"))]
    for number, (name, sentence) in enumerate(random.Random(seed).sample(found, count), 1):
        print(f"{number:2}. {name}: {sentence}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
