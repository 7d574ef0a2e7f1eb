"""The wheel that scripts/dawn_wheel.py packs: the library that is known, its licences, a record that agrees; anything else is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from scripts import dawn_wheel


@pytest.fixture(params=dawn_wheel.BUILDS)
def build(request: pytest.FixtureRequest) -> dawn_wheel.Build:
    return dawn_wheel.BUILDS[request.param]


@pytest.fixture
def fetched(tmp_path: Path, build: dawn_wheel.Build) -> Path:
    made = tmp_path / "fetched.whl"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(build.library, b"the library")
        archive.writestr(f"{dawn_wheel.LICENCES}LICENSE", "one")
        archive.writestr(f"{dawn_wheel.LICENCES}THIRD_PARTY_LICENSES.txt", "two")
        archive.writestr("rillfacet/viewer.py", "raise SystemExit")
    return made


def test_it_holds_the_library_and_its_licences_and_nothing_else(
    fetched: Path, build: dawn_wheel.Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = tmp_path / "known.json"
    known.write_text(json.dumps({hashlib.sha256(b"the library").hexdigest(): {"name": "it", "features": {}}}))
    monkeypatch.setattr(dawn_wheel, "KNOWN", known)
    with zipfile.ZipFile(dawn_wheel.pack(fetched, tmp_path, build)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    about, library = f"ort_gpu_ep_dawn-{dawn_wheel.VERSION}.dist-info", f"ort_gpu_ep_dawn/{Path(build.library).name}"
    assert set(files) == {"ort_gpu_ep_dawn/__init__.py", library, *(
        f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE", "licenses/THIRD_PARTY_LICENSES.txt"))}
    assert files[library] == b"the library"
    assert f"Tag: py3-none-{build.tag}\n" in files[f"{about}/WHEEL"].decode()
    recorded = dict(row.split(",", 1) for row in files[f"{about}/RECORD"].decode().split())
    assert recorded.pop(f"{about}/RECORD") == ","
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=") for name, data in files.items()}
    assert recorded == {name: f"sha256={digests[name]},{len(files[name])}" for name in files if not name.endswith("RECORD")}


def test_a_library_that_is_not_known_is_not_packed(fetched: Path, build: dawn_wheel.Build, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not list"):
        dawn_wheel.pack(fetched, tmp_path, build)
    assert not list(tmp_path.glob("ort_gpu_ep_dawn*"))
