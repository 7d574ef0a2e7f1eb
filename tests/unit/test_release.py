"""What a release carries: links that work outside of the repository, URLs, notices; and what scripts/setup.sh
installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from scripts import release_metadata, requirements

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY, TAG = "https://example.org/somebody/ort-gpu-ep", "v0.1.0"
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def test_no_link_of_the_long_description_is_relative() -> None:
    text = release_metadata.absolute((ROOT / "README.md").read_text("utf-8"), REPOSITORY, TAG)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    assert f"({REPOSITORY}/blob/{TAG}/docs/status.md)" in text
    assert f"({REPOSITORY}/raw/{TAG}/docs/peers.svg)" in text
    assert f"({REPOSITORY}/tree/{TAG}/docs/decisions/)" in text
    assert "(https://onnxruntime.ai)" in text


def test_the_long_description_installs_the_release() -> None:
    text = release_metadata.long_description((ROOT / "README.md").read_text("utf-8"), REPOSITORY, TAG)
    assert "pip install 'ort-gpu-ep[onnxruntime,cli]'" in text
    assert "pip install '.[" not in text
    assert "From a checkout" not in text


def test_urls_are_added() -> None:
    project = tomllib.loads(release_metadata.with_urls(PYPROJECT, REPOSITORY, TAG))["project"]
    assert project["urls"]["Repository"] == REPOSITORY
    assert set(project["urls"]) == {"Repository", "Documentation", "Issues", "Changelog"}
    assert project["scripts"] == tomllib.loads(PYPROJECT)["project"]["scripts"]


def test_the_workflow_prepares_and_publishes_without_a_password() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    prepared = workflow.index("scripts/release_metadata.py")
    assert prepared < workflow.index("scripts/build_wheel.py") < workflow.index("build --sdist")
    assert "id-token: write" in workflow
    assert "password" not in re.sub(r"#.*", "", workflow)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_actions_are_named_by_digest() -> None:
    """A tag can be moved to other code; the version stands behind it for people, and is one in all workflows."""
    uses = [line for path in WORKFLOWS for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    named = [re.search(r"uses: ([\w-]+/[\w-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line) for line in uses]
    assert len(uses) > 30
    assert [line for line, match in zip(uses, named, strict=True) if match is None] == []
    found = {match.groups() for match in named if match}
    assert len(found) == len({action for action, _, _ in found})


def test_a_release_is_rehearsed_attested_and_tried() -> None:
    """Each job of what is published needs the ones before it."""
    jobs = dict(
        re.findall(
            r"^  (\w+):\n((?:    .*\n|\n)+)", (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"), re.M
        )
    )
    needs = {
        name: set(re.findall(r"\w+", re.search(r"needs: (.*)", job)[1])) if "needs:" in job else set()
        for name, job in jobs.items()
    }
    assert needs["publish"] == {"install"}
    assert needs["install"] == {"rehearse"}
    assert needs["rehearse"] == {"smoke", "sdist", "attest"}
    assert "test.pypi.org/legacy/" in jobs["rehearse"]
    assert "sbom-path:" in jobs["attest"]
    assert "startsWith(github.ref, 'refs/tags/v')" in jobs["publish"]
    assert [name for name, job in jobs.items() if "id-token: write" in job] == ["attest", "rehearse", "publish"]


def test_systems_without_a_daily_test_have_a_nightly_one() -> None:
    nightly = (ROOT / ".github" / "workflows" / "nightly.yml").read_text("utf-8")
    assert "os: [macos-latest, windows-latest]" in nightly
    assert '"3.14t"' in nightly


def test_notices_are_in_every_distribution() -> None:
    project = tomllib.loads(PYPROJECT)["project"]
    for name in project["license-files"]:
        assert (ROOT / name).is_file()
    notices = (ROOT / "THIRD_PARTY_NOTICES.md").read_text("utf-8")
    assert [name for name in re.findall(r"`(ort_gpu_ep/[\w/.]+)`", notices) if not (ROOT / name).is_file()] == []
    assert "THIRD_PARTY_NOTICES.md" in project["license-files"]


def test_groups_are_not_extras() -> None:
    project = tomllib.loads(PYPROJECT)
    assert set(project["dependency-groups"]) == {"test", "docs", "clients", "examples", "exporters"}
    assert not set(project["dependency-groups"]) & set(project["project"]["optional-dependencies"])
    assert not [line for group in project["dependency-groups"].values() for line in group if "ort-gpu-ep" in line]


def test_what_the_set_up_installs() -> None:
    lines = requirements.requirements(["all", "test"])
    assert lines[0] == "--editable .[all]"
    assert any(line.startswith("pytest>=") for line in lines)
    assert requirements.requirements([]) == ["--editable ."]
    for script in (ROOT / "scripts").glob("*.sh"):
        for names in re.findall(r"^extras=\"?([\w,]+)", script.read_text("utf-8"), re.M):
            assert requirements.requirements(names.split(",")), script.name
    with pytest.raises(SystemExit, match="no extra or dependency group nothing"):
        requirements.requirements(["nothing"])
