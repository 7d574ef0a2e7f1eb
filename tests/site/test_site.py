"""The built site: what its search finds, and where its pages lead."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from scripts import build_site

REPOSITORY = "https://github.com/somebody/ort-gpu-ep"
SEARCH = Path(__file__).with_name("search.mjs")

FIRST = {
    "fp16": "precision/",
    "AMD": "which-provider/",
    "license": "LICENSE/",
    "telemetry": "status/",
    "whisper": "language-models/",
    "docker": "containers/",
}
"""Query -> the page that has the answer."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    build_site.build(folder, REPOSITORY)
    return folder


@pytest.fixture(scope="module")
def found(site: Path) -> dict[str, list[str]]:
    done = subprocess.run(["node", SEARCH, site, *FIRST, "Softmax"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers: dict[str, list[str]] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("query", FIRST)
def test_a_search_finds_the_right_page_first(query: str, found: dict[str, list[str]]) -> None:
    assert found[query][0].partition("#")[0] == FIRST[query]


def test_an_operators_name_leads_to_its_entry(found: dict[str, list[str]]) -> None:
    assert found["Softmax"][0] == "OPERATORS/#softmax"


def test_history_is_not_searched(site: Path) -> None:
    locations = [item["location"] for item in json.loads((site / "search.json").read_text("utf-8"))["items"]]
    assert len(locations) > 200
    assert [at for at in locations if at.startswith(("CHANGELOG/", "decisions/", "benchmarks-log/", "modules/"))] == []


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("index.html", "README.md"),
        ("api/index.html", "docs/api.md"),
        ("CONTRIBUTING/index.html", "CONTRIBUTING.md"),
        ("LICENSE/index.html", "LICENSE"),
        ("decisions/0014-extras/index.html", "docs/decisions/0014-extras.md"),
    ],
)
def test_a_page_leads_to_the_file_to_edit(page: str, source: str, site: Path) -> None:
    assert set(re.findall(r'href="([^"]*/edit/[^"]*)"', (site / page).read_text("utf-8"))) == {
        f"{REPOSITORY}/edit/main/{source}"
    }


def test_pages_show_version_repository_and_schemes(site: Path) -> None:
    html = (site / "getting-started" / "index.html").read_text("utf-8")
    version = tomllib.loads((build_site.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"ort-gpu-ep {version}" in html
    assert f'href="{REPOSITORY}"' in html
    assert 'data-md-color-scheme="slate"' in html


def test_no_page_asks_another_server(site: Path) -> None:
    """Fonts and scripts are the site's own."""
    for path in site.rglob("*.html"):
        assert (
            re.findall(
                r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//[^"]*|<link[^>]*rel="stylesheet"[^>]*href="(?:https?:)?//[^"]*',
                path.read_text("utf-8"),
            )
            == []
        )


def test_what_renders_empty_is_found(site: Path, tmp_path: Path) -> None:
    assert build_site.empty_names(site) == []
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "index.html").write_text("", "utf-8")
    assert "ort_gpu_ep.generation.generator.Generator" in build_site.empty_names(tmp_path)


def test_the_page_for_unknown_addresses_leads_on_from_any_depth(site: Path) -> None:
    html = (site / "404.html").read_text("utf-8")
    leads = re.findall(r'(?:href|src)="([^"#]*)"', html)
    own = [at for at in leads if not re.match(r"[a-z]+:", at)]
    assert "There is no page at this address" in html
    assert [at for at in own if not at.startswith("/ort-gpu-ep/")] == []
    pages = [site / at.removeprefix("/ort-gpu-ep/") for at in own]
    assert [str(page) for page in pages if not (page.is_file() or (page / "index.html").is_file())] == []
