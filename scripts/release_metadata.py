"""Prepares a checkout for a release: absolute links in README.md, which is the long description, and the project's URLs in pyproject.toml.

The release workflow runs it, since only it knows where the repository is. It changes both files.

usage: python scripts/release_metadata.py REPOSITORY_URL TAG
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def absolute(text: str, repository: str, tag: str) -> str:
    """Markdown whose relative links and pictures point into the repository at that tag."""
    def link(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        return f"{mark}[{label}]({repository}/{'raw' if mark else 'tree' if target.endswith('/') else 'blob'}/{tag}/{target})"
    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def with_urls(pyproject: str, repository: str, tag: str) -> str:
    """pyproject.toml with the table of URLs."""
    urls = {"Repository": repository, "Documentation": f"{repository}/tree/{tag}/docs", "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md"}
    table = "\n".join(("[project.urls]", *(f'{name} = "{url}"' for name, url in urls.items())))
    return pyproject.replace("[project.scripts]", f"{table}\n\n[project.scripts]", 1)


def main(repository: str, tag: str) -> None:
    for name, change in (("README.md", absolute), ("pyproject.toml", with_urls)):
        path = ROOT / name
        path.write_text(change(path.read_text("utf-8"), repository.rstrip("/"), tag), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
