"""Prepares a checkout for a release: absolute links in README.md, which is the long description, and the project's URLs
in pyproject.toml.

The release workflow runs it, since only it knows where the repository is. It changes both files. After the first
release INSTALL becomes the package's name, and `--install` writes that into all documents.

usage: python scripts/release_metadata.py REPOSITORY_URL TAG | --install
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


INSTALL = "."
"""What pip is given in front of extras, in all documents: the checkout, since there is no release."""

PACKAGE = "ort-gpu-ep"
DOCUMENTS = ("README.md", "docs/*.md", "examples/*.md", "examples/*.py")
_LINE = re.compile(rf"(pip install ')(?:\.|{PACKAGE})(?=\[[\w,]+\]')")


def installing(text: str, source: str) -> str:
    """A text whose `pip install` lines of this package take it from there."""
    return _LINE.sub(rf"\g<1>{source}", text)


def absolute(text: str, repository: str, tag: str) -> str:
    """Markdown whose relative links and pictures point into the repository at that tag."""

    def link(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        return f"{mark}[{label}]({repository}/{'raw' if mark else 'tree' if target.endswith('/') else 'blob'}/{tag}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def long_description(text: str, repository: str, tag: str) -> str:
    """README.md as the page of the released package shows it."""
    return absolute(installing(text, PACKAGE).replace("From a checkout, with Python", "With Python"), repository, tag)


def with_urls(pyproject: str, repository: str, tag: str) -> str:
    """pyproject.toml with the table of URLs."""
    urls = {
        "Repository": repository,
        "Documentation": f"{repository}/tree/{tag}/docs",
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
    }
    table = "\n".join(("[project.urls]", *(f'{name} = "{url}"' for name, url in urls.items())))
    return pyproject.replace("[project.scripts]", f"{table}\n\n[project.scripts]", 1)


def main(repository: str, tag: str = "") -> None:
    if repository == "--install":
        for path in (path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
            path.write_text(installing(path.read_text("utf-8"), INSTALL), "utf-8")
        return
    for name, change in (("README.md", long_description), ("pyproject.toml", with_urls)):
        path = ROOT / name
        path.write_text(change(path.read_text("utf-8"), repository.rstrip("/"), tag), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
