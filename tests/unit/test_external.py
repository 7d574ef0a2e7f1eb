"""The files of a model's external data: the ones that onnxruntime reads, and no others, by all who read such files."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.ir import external
from ort_gpu_ep.placement.source import Source

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and FIFOs need more rights on Windows")

SIDE = 8
WEIGHT = np.random.default_rng(12).normal(size=(SIDE, SIDE)).astype("f")
INFO = [helper.make_tensor_value_info("x", 1, ["n", SIDE])], [helper.make_tensor_value_info("y", 1, None)]


def apart(
    location: str | bytes, dims: tuple[int, ...] = (SIDE, SIDE), kind: int = 1, name: str = "w", **told: str
) -> onnx.TensorProto:
    """A tensor whose content lies in another file. told: more entries."""
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": location, **told}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_with(
    *initializers: onnx.TensorProto, nodes: list[onnx.NodeProto] | None = None, **fields: Any
) -> onnx.ModelProto:
    product = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(product if nodes is None else nodes, "g", *INFO, initializers)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)], ir_version=9, **fields
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with files, links in it and out of it, and what is no file."""
    folder = tmp_path / "a" / "m"
    (folder / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    for file in (
        folder / "w",
        folder / "sub" / "w",
        tmp_path / "a" / "outside",
        tmp_path / "b" / "w",
        folder / os.fsdecode(b"w\xff"),
    ):
        file.write_bytes(WEIGHT.tobytes() * 2)
    for name, target in {
        "in": "w",
        "full": folder / "w",
        "out": "../outside",
        "b": "../../b",
        "self": ".",
        "deep": "sub/deep",
        "gone": "nowhere",
        "round": "round",
        "root": "/proc/self/root",
        "l00": "w",
    }.items():
        (folder / name).symlink_to(target)
    for number in range(1, 60):
        (folder / f"l{number:02}").symlink_to(f"l{number - 1:02}")
    os.mkfifo(folder / "fifo")
    os.link(folder / "w", folder / "hard")
    return folder


LOCATIONS = [
    # taken
    "w",
    "./w",
    "sub/w",
    "sub//w",
    "sub/../w",
    "../m/w",
    "self/w",
    "deep/../w",
    "in",
    "full",
    "hard",
    os.fsdecode(b"w\xff"),
    "l20",
    "../outside",
    "{folder}/w",
    "{folder}/../outside",
    "out",
    "b/w",
    "root{folder}/../outside",
    "deep/../../../outside",
    "gone",
    "fifo",
    "round",
    "l59",
    "",
    ".",
    "..",
    "sub",
    "nothing",
    "sub/nothing/../../w",
    "w/",
    "w/.",
    "/dev/zero",
    "/dev/null",
    "root/dev/zero",
    "x" * 300,
    "sub/" * 2000 + "w",
]


@pytest.mark.parametrize("location", LOCATIONS, ids=lambda text: ascii(text)[:40])
def test_the_files_are_those_that_onnxruntime_reads(location: str, folder: Path) -> None:
    location = location.replace("{folder}", str(folder))
    path = folder / "model.onnx"
    path.write_bytes(
        model_with(apart("!" * len(os.fsencode(location))))
        .SerializeToString()
        .replace(b"!" * len(os.fsencode(location)) if location else b"\0\0", os.fsencode(location) or b"\0\0")
    )
    x = np.random.default_rng().normal(size=(3, SIDE)).astype("f")
    try:
        (got,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    except Exception:
        with pytest.raises(ModelError, match="external data in"):
            external.open_location(location, str(folder), str(path))
        with pytest.raises(ModelError):
            external.load(path)
        return
    np.testing.assert_allclose(got, x @ WEIGHT, rtol=1e-5)
    with external.open_location(location, str(folder), str(path)) as file:
        assert file.read() == WEIGHT.tobytes() * 2
    assert (
        external.locations(path.read_bytes())
        == external.locations_in(onnx.load_model_from_string(path.read_bytes()))
        == [location]
    )
    np.testing.assert_array_equal(numpy_helper.to_array(external.load(path).graph.initializer[0]), WEIGHT)
    assert external.locations(external.relocated(path.read_bytes(), {location: "0"})) == ["0"]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"offset": "256", "length": "256"},
        {"offset": "0256"},
        {"length": "0"},
        {"checksum": "x"},  # taken
        {"offset": "260"},
        {"offset": "257", "length": "256"},
        {"offset": "-1"},
        {"length": "255"},
        {"length": "512"},
        {"length": "-256"},
        {"offset": "0x0"},
        {"offset": " 0"},
        {"offset": ""},
        {"offset": "18446744073709551615"},
        {"offset": "9" * 30},
        {"length": "9" * 30},
    ],
    ids=str,
)
def test_offsets_and_lengths_are_checked_as_onnxruntime_does(told: dict[str, str], folder: Path) -> None:
    (folder / "w").write_bytes(bytes(256) + WEIGHT.tobytes())
    path = folder / "model.onnx"
    path.write_bytes(model_with(apart("w", **told)).SerializeToString())
    x = np.random.default_rng().normal(size=(3, SIDE)).astype("f")
    try:
        (want,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    except Exception:
        with pytest.raises(ModelError, match=r"offset|bytes at"):
            external.load(path)
        return
    np.testing.assert_allclose(
        x @ numpy_helper.to_array(external.load(path).graph.initializer[0]), want, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("dims", [(1 << 20,), (1 << 40, 1 << 20), (1 << 62, 1 << 62), (-1, 4), (0, 5)], ids=str)
def test_sizes_without_bytes_take_no_memory(dims: tuple[int, ...], folder: Path) -> None:
    model = model_with(apart("w", dims))
    if 0 in dims:
        assert external.load(_written(folder, model)).graph.initializer[0].raw_data == b""
        return
    with pytest.raises(
        ModelError, match=r"expected numbers, and sizes|the file has 512|less than 2147483648 in a tensor"
    ):
        external.load(_written(folder, model))


def _written(folder: Path, model: onnx.ModelProto) -> Path:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def in_all_places(folder: Path) -> onnx.ModelProto:
    """External data wherever a model can have a tensor, a file for each; onnxruntime reads all of them."""
    for name in ("init", "attribute", "body", "inner", "function", "values", "sparse"):
        (folder / name).write_bytes(WEIGHT.tobytes())
    (folder / "indices").write_bytes(np.arange(SIDE).tobytes())
    inner = helper.make_node("Constant", [], ["c"], value=apart("inner"))
    body = helper.make_graph(
        [inner, helper.make_node("Add", ["b", "c"], ["z"])],
        "body",
        [],
        [helper.make_tensor_value_info("z", 1, None)],
        [apart("body", name="b")],
    )
    function = helper.make_function(
        "own",
        "F",
        ["a"],
        ["r"],
        [
            helper.make_node("Constant", [], ["v"], value=apart("function")),
            helper.make_node("MatMul", ["a", "v"], ["r"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    constant = helper.make_node("Constant", [], ["s"])
    attribute = constant.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(
        helper.make_sparse_tensor(apart("sparse", (SIDE,)), numpy_helper.from_array(np.arange(SIDE)), [SIDE, SIDE])
    )
    model = model_with(
        apart("init"),
        nodes=[
            helper.make_node("Constant", [], ["a"], value=apart("attribute")),
            constant,
            helper.make_node("F", ["x"], ["f"], domain="own"),
            helper.make_node("If", ["yes"], ["i"], then_branch=body, else_branch=body),
            helper.make_node("MatMul", ["f", "w"], ["h"]),
            helper.make_node("Sum", ["a", "i", "s", "sp"], ["t"]),
            helper.make_node("MatMul", ["h", "t"], ["y"]),
        ],
        functions=[function],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            apart("values", (SIDE,), name="sp"), apart("indices", (SIDE,), 7, "indices"), [SIDE, SIDE]
        )
    )
    return model


PLACES = ["attribute", "body", "function", "indices", "init", "inner", "sparse", "values"]


def test_every_place_of_a_tensor_is_looked_at(folder: Path) -> None:
    model = in_all_places(folder)
    path, x = _written(folder, model), np.random.default_rng().normal(size=(2, SIDE)).astype("f")
    (want,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert external.locations(path.read_bytes()) == external.locations_in(model) == PLACES
    whole = external.load(path)
    for place in PLACES:
        (folder / place).unlink()
    (got,) = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("prefix", ["", "self/sub/../"])
def test_what_is_deleted_is_copied_under_numbers_for_this_user_only(prefix: str, folder: Path) -> None:
    """Names in a model are whatever its author wants. Here some lead up, and one file is private."""
    model = in_all_places(folder)
    external.relocate(model, {place: prefix + place for place in PLACES})
    path, x = _written(folder, model), np.random.default_rng().normal(size=(2, SIDE)).astype("f")
    (folder / "init").chmod(0o600)
    (want,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    source = Source(str(path))
    for place in (*PLACES, "model.onnx"):
        (folder / place).unlink()
    with source.there() as there:
        assert isinstance(there, str)
        assert sorted(os.listdir(os.path.dirname(there))) == [*map(str, range(len(PLACES))), "model.onnx"]
        assert stat.S_IMODE(os.stat(os.path.dirname(there)).st_mode) == 0o700
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(os.path.dirname(there))} == {0o600}
        (got,) = onnxruntime.InferenceSession(there, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(got, want)
    assert not os.path.exists(os.path.dirname(there))


@pytest.mark.parametrize("location", [*LOCATIONS, "/proc/thread-self/comm"], ids=lambda text: ascii(text)[:40])
@pytest.mark.parametrize("where", [onnx.TensorProto.DEFAULT, onnx.TensorProto.EXTERNAL])
def test_no_location_makes_a_source_wait_or_write(
    location: str, where: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is written nowhere but in a folder of ours, whatever a model says; of tensors whose data are in the model
    nothing is asked."""
    location = os.fsencode(location.replace("{folder}", str(folder))).decode("latin-1")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    tensor = apart("")
    tensor.data_location = where
    tensor.external_data[0].value = location
    tensor.raw_data = WEIGHT.tobytes()
    path = _written(folder, model_with(tensor))
    before = listing(tmp_path)
    opened: list[Source] = []
    thread = threading.Thread(target=lambda: opened.append(Source(str(path))), daemon=True)
    thread.start()
    thread.join(60)
    assert opened, "it hangs"
    (source,) = opened
    assert listing(tmp_path) == before
    if where == onnx.TensorProto.DEFAULT:
        assert source._external == {}
    path.unlink()
    with source.there() as there:
        assert Path(str(there)).parent.parent == temporary
    del before[str(path)]
    assert listing(tmp_path) == before


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of all that is in a folder."""
    found = {}
    for parent, _, files in os.walk(folder):
        for name in (parent, *(os.path.join(parent, file) for file in files)):
            state = os.lstat(name)
            content = (
                Path(name).read_bytes()
                if stat.S_ISREG(state.st_mode)
                else os.readlink(name).encode()
                if stat.S_ISLNK(state.st_mode)
                else b""
            )
            found[name] = state.st_mode, content
    return found


def test_a_model_behind_links_as_hugging_faces_cache_has_it(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "v"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs" / "m").write_bytes(model_with(apart("w")).SerializeToString())
    (tmp_path / "blobs" / "d").write_bytes(WEIGHT.tobytes())
    (snapshot / "model.onnx").symlink_to("../../blobs/m")
    (snapshot / "w").symlink_to("../../blobs/d")
    assert external.path_of("w", str(snapshot), str(snapshot / "model.onnx")) == str(tmp_path / "blobs" / "d")
    np.testing.assert_array_equal(
        numpy_helper.to_array(external.load(snapshot / "model.onnx").graph.initializer[0]), WEIGHT
    )
    (snapshot / "alone.onnx").write_bytes((tmp_path / "blobs" / "m").read_bytes())
    with pytest.raises(ModelError, match="leads out of it"):
        external.load(snapshot / "alone.onnx")


def test_of_a_model_in_memory_the_current_folder_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model_with(apart("w"))
    with pytest.raises(ModelError, match="external data in 'w'"):
        external.load(made)
    monkeypatch.chdir(folder)
    for model in (made, made.SerializeToString()):
        np.testing.assert_array_equal(numpy_helper.to_array(external.load(model).graph.initializer[0]), WEIGHT)
    assert made.graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL, "the caller's model is left as it is"
    with pytest.raises(ModelError, match="leads out of it"):
        external.load(model_with(apart("../outside")))
