"""Builds the documents as a site: README and the other documents of the root become pages beside those of docs/,
Zensical renders them.

usage: python scripts/build_site.py [FOLDER] [--repository URL]      (needs the group `docs`; default folder: build/site)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BRANCH = "main"

AT_ROOT = {
    "index.md": "README.md",
    "LICENSE.md": "LICENSE",
    **{
        f"{name}.md": f"{name}.md"
        for name in (
            "CHANGELOG",
            "CONTRIBUTING",
            "GOVERNANCE",
            "CODE_OF_CONDUCT",
            "SUPPORT",
            "SECURITY",
            "THIRD_PARTY_NOTICES",
        )
    },
}
"""Page -> the file of the root that it shows."""

LICENSE = """# License

Apache License 2.0. The [notices](THIRD_PARTY_NOTICES.md) name the work of others that the package contains or uses.

```text
{}
```
"""
DECISIONS = "decisions/index.md"
NOT_SEARCHED = ("CHANGELOG.md", "decisions/", "benchmarks-log.md", "modules.md", "THIRD_PARTY_NOTICES.md")
"""History, and lists of everything: they name all words."""

NOT_FOUND = """<h1>There is no page at this address</h1>
<p>It may have moved. The search above looks through the documents. Or start from one of these:</p>
<ul>
<li><a href="{base}">Overview</a></li>
<li><a href="{base}getting-started/">Getting started</a></li>
<li><a href="{base}commands/">What the commands print</a></li>
<li><a href="{base}OPERATORS/">Operators</a></li>
<li><a href="{base}SUPPORT/">Where to ask</a></li>
</ul>"""
"""base: of the site, from the root of its server: the page is shown at addresses of any depth."""

MIN_WORDS = 8
"""Of an entry of the reference: a name and a sentence."""


def pages(repository: str = "") -> dict[str, str]:
    """Path of each page -> its markdown. Links to files that are no pages lead into `repository`; without one they
    become their text."""
    sources = {path.relative_to(DOCS).as_posix(): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}
    sources |= {page: _from_docs((ROOT / name).read_text("utf-8")) for page, name in AT_ROOT.items()}
    sources["LICENSE.md"] = LICENSE.format(sources["LICENSE.md"])
    sources[DECISIONS] = "# Decisions\n\nWhat was decided about the code, why, and what it costs.\n\n" + "".join(
        f"- [{title(text)}]({page.partition('/')[2]})\n"
        for page, text in sources.items()
        if page.startswith("decisions/")
    )
    return {page: _head(page) + linked(text, page, set(sources), repository) for page, text in sources.items()}


def title(text: str) -> str:
    """A page's first heading."""
    return text.partition("\n")[0].removeprefix("# ")


def _from_docs(text: str) -> str:
    """Links of a file of the root, as a page of docs/ writes them."""
    return re.sub(r"\]\((?![a-z]+:|#|/)(docs/)?", lambda match: "](" if match[1] else "](../", text)


def _head(page: str) -> str:
    return "---\nsearch:\n  exclude: true\n---\n" if page.startswith(NOT_SEARCHED) else ""


def linked(text: str, page: str, known: set[str], repository: str) -> str:
    at_root = {name: at for at, name in AT_ROOT.items()}

    def link(match: re.Match[str]) -> str:
        label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        path, hash_, heading = target.partition("#")
        file = os.path.normpath(PurePosixPath("docs", page).parent / path).replace(os.sep, "/")
        goal = at_root.get(file) or file.removeprefix("docs/") + ("/index.md" if path.endswith("/") else "")
        if goal in known:
            return (
                f"[{label}]({os.path.relpath(goal, PurePosixPath(page).parent).replace(os.sep, '/')}{hash_}{heading})"
            )
        if (ROOT / file).suffix in (".svg", ".json"):  # copied beside the pages
            return match.group() if not page.startswith("index") else f"[{label}]({file.removeprefix('docs/')})"
        return (
            f"[{label}]({repository}/{'tree' if (ROOT / file).is_dir() else 'blob'}/{BRANCH}/{file})"
            if repository
            else label
        )

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`(?!\]))", text, flags=re.M | re.S)  # code stays as it is
    return "".join(
        part if index % 2 else re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, part) for index, part in enumerate(parts)
    )


def settings(repository: str = "") -> dict[str, Any]:
    """zensical.toml's, with the version, the decisions, and what leads into the repository."""
    project: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    project["site_name"] += f" {version}"
    project["plugins"]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT)]
    (decisions,) = (
        entry for group in project["nav"] for part in group.values() for entry in part if entry.get("Decisions") == []
    )
    decisions["Decisions"] = [
        DECISIONS,
        *(f"decisions/{path.name}" for path in sorted((DOCS / "decisions").glob("*.md"))),
    ]
    if repository:
        project |= {
            "repo_url": repository,
            "repo_name": "/".join(repository.split("/")[-2:]),
            "edit_uri": f"edit/{BRANCH}/docs",
            "site_url": address(repository),
        }
    return project


def address(repository: str) -> str:
    """Where GitHub publishes the pages of a repository. The page for unknown addresses needs it: its links start at the
    root of the server."""
    owner, name = repository.split("/")[-2:]
    return f"https://{owner.lower()}.github.io/{name}/"


def in_nav(nav: Iterable[Any]) -> list[str]:
    """The pages of a navigation, in its order."""
    found = []
    for entry in nav:
        if isinstance(entry, str):
            found.append(entry)
        else:
            for part in entry.values():
                found += in_nav([part] if isinstance(part, str) else part)
    return found


def build(folder: Path, repository: str = "") -> None:
    """Exits with a message for a link that leads nowhere, or a name of the reference that renders empty."""
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch)
        shutil.copytree(DOCS, staged / "docs")
        for page, text in pages(repository).items():
            (staged / "docs" / page).write_text(text, "utf-8")
        # which is YAML, too; zensical reads both
        (staged / "mkdocs.yml").write_text(json.dumps(settings(repository)), "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict", "-f", "mkdocs.yml"],
            cwd=staged,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1"},
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\nzensical ended with exit code {done.returncode}; see above")
        problems = empty_names(staged / "site")
        if problems:
            sys.exit(f"api.md: these names render empty: {', '.join(problems)}")
        for page, name in AT_ROOT.items():
            _edit(staged / "site" / page, f"edit/{BRANCH}/docs/{page}", f"edit/{BRANCH}/{name}")
        _say_where_to_go(staged / "site" / "404.html", urlsplit(address(repository)).path if repository else "/")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(staged / "site", folder)


def _edit(page: Path, path: str, real: str) -> None:
    html = page.with_suffix(".html") if page.stem == "index" else page.with_suffix("") / "index.html"
    html.write_text(html.read_text("utf-8").replace(path, real), "utf-8")


def _say_where_to_go(html: Path, base: str) -> None:
    """Zensical's page for unknown addresses has a heading and nothing else."""
    before, heading, after = html.read_text("utf-8").partition("<h1>404 - Not found</h1>")
    if not heading:
        sys.exit(f"{html.name}: zensical writes another heading; see _say_where_to_go")
    html.write_text(before + NOT_FOUND.format(base=base) + after, "utf-8")


def empty_names(site: Path) -> list[str]:
    """Names of the reference that render without a signature or a text."""
    html = (site / "api" / "index.html").read_text("utf-8")
    names = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text("utf-8"), re.M)
    texts: Mapping[str, str] = {name: html.partition(f'id="{name}"')[2][:20_000].partition("<h2")[0] for name in names}
    return [name for name, text in texts.items() if len(re.sub(r"<[^>]+>", " ", text).split()) < MIN_WORDS]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site")
    parser.add_argument(
        "--repository", default="", metavar="URL", help="of the sources, for links to them and for editing"
    )
    arguments = parser.parse_args()
    build(arguments.folder, arguments.repository.rstrip("/"))
