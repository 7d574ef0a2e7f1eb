"""For mkdocs: the README is the site's first page, the changelog another; links out of docs/ lead to pages or to nothing but their text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index.md": ROOT / "README.md", "CHANGELOG.md": ROOT / "CHANGELOG.md", "CONTRIBUTING.md": ROOT / "CONTRIBUTING.md",
         "SECURITY.md": ROOT / "SECURITY.md"}


def on_files(files: Any, config: Any) -> Any:
    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=source.read_text("utf-8").replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files that are no pages (sources, tests) become their text."""
    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        place = (Path("/", page.file.src_uri).parent / target.partition("#")[0])
        known = {f"/{f.src_uri}" for f in files}
        path = "/" + "/".join(_normal(place.parts[1:]))
        if path in known:
            return match.group()
        if path == "/README.md":
            return f"[{text}]({'../' * page.file.src_uri.count('/')}index.md)"
        return f"[{text}]({target}index.md)" if f"{path}/index.md" in known else text
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, markdown)


def _normal(parts: tuple[str, ...]) -> list[str]:
    """Without `..`; what lies above docs/ counts as lying in it."""
    found: list[str] = []
    for part in parts:
        if part == "..":
            found = found[:-1]
        elif part != ".":
            found.append(part)
    return found
