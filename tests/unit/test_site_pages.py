"""What the site is made of: its pages, their links, and the navigation."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

import pytest

from scripts import build_site

REPOSITORY = "https://github.com/somebody/ort-gpu-ep"
LINK = re.compile(r"\[[^\]]*\]\((?![a-z]+:)([^)#\s]+)[^)]*\)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]+`(?!\])", "", text, flags=re.M | re.S)


@pytest.mark.parametrize("repository", ["", REPOSITORY])
def test_links_between_pages_lead_to_pages(repository: str) -> None:
    pages = build_site.pages(repository)
    files = {
        path.relative_to(build_site.DOCS).as_posix()
        for path in build_site.DOCS.rglob("*")
        if path.suffix in (".svg", ".json")
    }
    links = [
        (page, os.path.normpath(PurePosixPath(page).parent / target))
        for page, text in pages.items()
        for target in LINK.findall(without_code(text))
    ]
    assert len(links) > 200
    assert [(page, target) for page, target in links if target not in pages and target not in files] == []


def test_every_page_is_in_the_navigation_once() -> None:
    listed = build_site.in_nav(build_site.settings()["nav"])
    # which the page of the license names
    assert sorted(listed) == sorted({*build_site.pages()} - {"THIRD_PARTY_NOTICES.md"})


def test_contributing_comes_before_the_decisions() -> None:
    listed = build_site.in_nav(build_site.settings()["nav"])
    assert listed.index("CONTRIBUTING.md") < listed.index(build_site.DECISIONS)


def test_links_to_sources_lead_into_the_repository_where_one_is_known() -> None:
    assert f"[find_faces.py]({REPOSITORY}/blob/main/examples/find_faces.py)" in build_site.linked(
        "[find_faces.py](../examples/find_faces.py)", "a.md", set(), REPOSITORY
    )
    assert build_site.linked("[find_faces.py](../examples/find_faces.py)", "a.md", set(), "") == "find_faces.py"
    assert f"({REPOSITORY}/tree/main/examples)" in build_site.linked("[all](../examples/)", "a.md", set(), REPOSITORY)


def test_code_is_left_as_it_is() -> None:
    text = "```python\nhandlers[name](value)\n```\nand `table[0](x)`, [a](b.md)\n"
    assert build_site.linked(text, "c.md", {"b.md"}, "") == text


def test_the_repository_is_named_only_where_it_is_told() -> None:
    assert "repo_url" not in build_site.settings()
    assert build_site.settings(REPOSITORY)["repo_name"] == "somebody/ort-gpu-ep"


def test_each_page_begins_with_its_title() -> None:
    for path in build_site.DOCS.rglob("*.md"):
        assert path.read_text("utf-8").startswith("# "), Path(path).name
