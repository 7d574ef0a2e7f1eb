"""For mkdocs: the README is the site's first page, the changelog another; links out of docs/ lead to pages or to nothing but their text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index.md": ROOT / "README.md", **{f"{name}.md": ROOT / f"{name}.md" for name in (
    "CHANGELOG", "CONTRIBUTING", "GOVERNANCE", "CODE_OF_CONDUCT", "SUPPORT", "SECURITY")}}

NOT_SEARCHED = ("CHANGELOG.md", "decisions/", "benchmarks-log.md", "modules.md")

MIN_WORDS = 8
"""Of an entry of the reference: a name and a sentence."""


def on_files(files: Any, config: Any) -> Any:
    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=source.read_text("utf-8").replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files that are no pages (sources, tests) become their text. History is left out of the search: it names everything."""
    if page.file.src_uri.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        place = (Path("/", page.file.src_uri).parent / target.partition("#")[0])
        known = {f"/{f.src_uri}" for f in files}
        path = "/" + "/".join(_normal(place.parts[1:]))
        top = "../" * page.file.src_uri.count("/")
        if path in known:       # also from docs/ to a page that lies above it
            return f"[{text}]({top}{path[1:]}{target[len(target.partition('#')[0]):]})"
        if path == "/README.md":
            return f"[{text}]({top}index.md)"
        return f"[{text}]({target}index.md)" if f"{path}/index.md" in known else text
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> None:
    """Raises PluginError for a name of the reference that renders without a signature or a text: the build fails then."""
    for name in re.findall(r"^::: (\S+)$", page.markdown or "", re.M):
        begin = html.find(f'id="{name}"')
        text = re.sub(r"<[^>]+>", " ", html[begin:begin + 20_000].partition('<h2')[0]) if begin >= 0 else ""
        if len(text.split()) < MIN_WORDS:
            raise PluginError(f"{page.file.src_uri}: {name} renders empty")


def _normal(parts: tuple[str, ...]) -> list[str]:
    """Without `..`; what lies above docs/ counts as lying in it."""
    found: list[str] = []
    for part in parts:
        if part == "..":
            found = found[:-1]
        elif part != ".":
            found.append(part)
    return found
