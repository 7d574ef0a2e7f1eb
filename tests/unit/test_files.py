"""Files that are held to be read later: known again whatever happened to them, and not more of them than a process may
have open."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep import files
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.files import (
    ChangedError,
    Held,
    blocks,
    content,
    copy,
    file_names,
    identity,
    new_file,
    open_regular,
    read_at,
    whole,
    write_array,
)
from ort_gpu_ep.placement.source import Source
from ort_gpu_ep.plugin.own_weights import OwnWeights
from tests.overwriting import overwrite, overwrite_like
from tests.unit.graphs import model_of

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="Windows keeps open files from being deleted: none is held there"
)

CONTENT = np.random.default_rng(3).bytes(100_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def held(path: Path, hold: bool = True) -> Held:
    return Held(open_regular(path), str(path), hold)


def read(file: Held) -> bytes:
    with file.opened() as found:
        return content(found)


def replaced(path: Path, data: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(data)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(other, path)


@pytest.mark.parametrize(
    "then",
    [
        Path.unlink,
        lambda path: replaced(path, CONTENT[::-1]),
        lambda path: path.rename(path.with_name("older")),
        lambda path: os.link(path, path.with_name("copy")),
    ],
    ids=["deleted", "replaced", "renamed", "linked"],
)
def test_what_is_held_may_go(then: Callable[[Path], object], path: Path) -> None:
    file = held(path)
    then(path)
    file.check()
    assert read(file) == CONTENT


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize(
    "then",
    [
        lambda path: overwrite(path, CONTENT[::-1]),
        lambda path: overwrite_like(path, CONTENT[::-1]),
        lambda path: os.truncate(path, 5),
        lambda path: path.chmod(0o600),
    ],
    ids=["overwritten", "with its time", "cut", "its mode"],
)
def test_what_is_written_to_is_another_file(then: Callable[[Path], object], hold: bool, path: Path) -> None:
    file = held(path, hold)
    assert file.is_held == hold
    assert read(file) == CONTENT
    then(path)
    with pytest.raises(ChangedError, match="was overwritten"):
        file.check()
    with pytest.raises(ChangedError):
        read(file)


def test_a_file_that_changes_while_it_is_read(path: Path) -> None:
    file = held(path)
    with pytest.raises(ChangedError), file.opened():
        overwrite_like(path, CONTENT[::-1])


def test_without_a_descriptor_a_file_has_to_stay(path: Path) -> None:
    file = held(path, hold=False)
    os.link(path, path.with_name("copy"))
    assert read(file) == CONTENT
    replaced(path, CONTENT[::-1])
    with pytest.raises(ChangedError, match="was replaced"):
        read(file)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read(file)


def test_parts_of_a_file(path: Path) -> None:
    with open_regular(path) as file:
        found = [(at, bytes(part)) for at, part in blocks(file, 999)]
        assert [at for at, _ in found] == list(range(0, len(CONTENT), 999))
        assert b"".join(part for _, part in found) == CONTENT
        part = bytearray(10)
        assert (read_at(file, memoryview(part), 99_995), bytes(part[:5])) == (5, CONTENT[-5:])
        assert read_at(file, memoryview(part), 200_000) == 0


def test_what_a_file_has_no_bytes_of_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        for place in (0, (1 << 40) + 5):
            file.seek(place)
            file.write(CONTENT)
        file.truncate(1 << 42)
    with open_regular(path) as file, open_regular(tmp_path / "copy", os.O_RDWR | os.O_CREAT) as into:
        copy(file, into)
        assert os.fstat(into.fileno()).st_size == 1 << 42
        assert [(at, bytes(part)) for at, part in blocks(into)] == [(at, bytes(part)) for at, part in blocks(file)]
        assert sum(len(bytes(part).strip(b"\0")) for _, part in blocks(into)) >= 2 * len(CONTENT) - 9


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_one_descriptor_for_all_that_hold_a_file(path: Path) -> None:
    before = descriptors()
    first, second = held(path), held(path)
    assert descriptors() == before + 1
    del first
    assert (read(second), descriptors()) == (CONTENT, before + 1)
    del second
    assert descriptors() == before


def test_a_quarter_of_the_descriptors_at_the_most(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 400), hard))
    try:
        assert files.most_held() == min(soft, 400) // 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = len(files._open) + 1
    monkeypatch.setattr(files, "most_held", lambda: most)
    other = path.with_name("other")
    other.write_bytes(b"another")
    first = held(path)
    assert (first.is_held, held(other).is_held) == (True, False)


def test_the_identity_that_is_kept_outlives_a_mount(path: Path) -> None:
    before = identity(path)
    assert before._replace(device=5, inode=7).kept() == before.kept()
    overwrite_like(path, CONTENT[::-1])
    assert identity(path).kept() != before.kept()


# ---- what is written


def test_a_file_of_the_users_follows_no_link(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    with new_file(link) as file:
        file.write(b"new")
    assert (path.read_bytes(), link.read_bytes(), link.is_symlink()) == (CONTENT, b"new", False)
    assert stat.S_IMODE(link.stat().st_mode) == 0o666 & ~_umask()


def _umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def test_names_out_of_a_model_are_no_paths() -> None:
    names = [
        "y",
        "a/b",
        "a\\b",
        "../../home/.bashrc",
        "..",
        "",
        "C:y",
        "a_b",
        "Y",
        "nul\0",
        "two\nlines",
        "x" * 300,
        "x" * 301,
        "größe",
        "-rf",
        "\u202e",
    ]
    found = file_names(names)
    assert found[:2] == ["y", "a_b"]
    assert len({name.casefold() for name in found}) == len(names)
    for name in found:
        assert name == os.path.basename(name)
        assert not set(name) & set('/\\:\0\n<>|"?*')
        assert 0 < len(name.encode()) <= 220
    assert found[names.index("größe")] == "größe"


# ---- models of many files


def of_many_files(folder: Path, count: int) -> Path:
    """y = x + w0 + w1 + ..., each weight in a file of its own."""
    names = [f"w{i}" for i in range(count)]
    steps = " ".join(f"h{i + 1} = Add(h{i}, {name})" for i, name in enumerate(names))
    model = model_of(
        f"(float[2] h0) => (float[2] h{count}) {{ {steps} }}",
        {name: np.full(2, i, "f") for i, name in enumerate(names)},
    )
    onnx.save_model(
        model, folder / "m.onnx", save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0
    )
    return folder / "m.onnx"


def test_a_model_is_held_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = of_many_files(tmp_path, 6)
    monkeypatch.setattr("ort_gpu_ep.placement.source.most_held", lambda: 28)
    held, before = Source(str(path)), descriptors()
    assert all(file.is_held for file in held._files())
    monkeypatch.setattr("ort_gpu_ep.placement.source.most_held", lambda: 24)
    source = Source(str(path))
    assert not any(file.is_held for file in source._external.values())
    assert descriptors() == before
    with source.there() as there:
        assert there == str(path)
    (tmp_path / "w3").rename(tmp_path / "older")
    with source.there() as there:
        assert there == str(path), "onnxruntime says that a file is missing"
    (tmp_path / "w3").write_bytes(bytes(8))
    with pytest.raises(ModelError, match="w3 was replaced after the session had been made of it"), source.there():
        pass
    with held.there() as there:
        assert there != str(path)
        (got,) = onnxruntime.InferenceSession(there, providers=["CPUExecutionProvider"]).run(
            None, {"h0": np.zeros(2, "f")}
        )
    np.testing.assert_array_equal(got, np.full(2, 15))


def test_what_cannot_be_held_is_no_place_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the CPU would have no weights any more once the file is deleted."""
    weight = np.random.default_rng(5).normal(size=(64, 64)).astype("f")
    (tmp_path / "m.onnx").write_bytes(
        model_of("(float[N, 64] x) => (y) { y = MatMul(x, w) }", {"w": weight}).SerializeToString()
    )
    own = OwnWeights(str(tmp_path / "m.onnx"))
    with monkeypatch.context() as patch:
        patch.setattr(files, "most_held", lambda: 0)
        assert own.place("w", weight) is None
    assert own.place("w", weight) is not None


FEW = """
import os, resource, sys
import numpy as np
import onnxruntime
import ort_gpu_ep
resource.setrlimit(resource.RLIMIT_NOFILE, (160, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
x, sessions = np.zeros(2, "f"), []
want, = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"]).run(None, {"h0": x})
for placement in ("cpu", "auto", "gpu", "auto", "gpu"):
    sessions.append(ort_gpu_ep.InferenceSession(sys.argv[1], provider_options={"placement": placement}))
    np.testing.assert_array_equal(sessions[-1].run(None, {"h0": x})[0], want)
assert len(os.listdir("/dev/fd")) < 60
"""


def test_sessions_of_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    path = of_many_files(tmp_path, 170)
    done = subprocess.run([sys.executable, "-c", FEW, str(path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


# ---- files that are written whole


def fill(path: Path, data: bytes | None, error: type[Exception] | None = None) -> None:
    with whole(path) as part:
        if data is not None:
            with open(part, "wb", 0) as file:
                while data:
                    data = data[file.write(data) :]
        if error is not None:
            raise error


def test_a_file_is_there_whole_or_as_it_was(path: Path) -> None:
    path.chmod(0o640)
    for part_nbytes in (10, None):
        with pytest.raises(ZeroDivisionError):
            fill(path, CONTENT[:part_nbytes] if part_nbytes else None, ZeroDivisionError)
        assert (path.read_bytes(), os.listdir(path.parent)) == (CONTENT, [path.name])
    with whole(path) as part:
        part.write_bytes(b"new")
        assert path.read_bytes() == CONTENT
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode), os.listdir(path.parent)) == (
        b"new",
        0o640,
        [path.name],
    )


def test_where_there_is_no_room_the_name_the_size_and_the_reason_are_told(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match=rf"^{path} can't be written, after 4,096 B: File too large$"):
            fill(path, CONTENT)
        with pytest.raises(OSError, match=rf"^{path} can't be written, after .* B: File too large$"):
            write_array(path, np.arange(1000.0))  # numpy alone leaves the beginning there, and says nothing
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (path.read_bytes(), os.listdir(path.parent)) == (CONTENT, [path.name])
    with (
        pytest.raises(OSError, match=f"^{path.parent / 'none' / 'file'} can't be written: No such file"),
        whole(path.parent / "none" / "file") as part,
    ):
        part.write_bytes(b"")


def test_a_link_is_replaced_and_a_device_written_to(path: Path) -> None:
    link = path.with_name("link.json")
    link.symlink_to(path)
    with whole(link) as part:
        assert part.suffix == ".json"
        part.write_bytes(b"own")
    assert (link.is_symlink(), link.read_bytes(), path.read_bytes()) == (False, b"own", CONTENT)
    with whole(os.devnull) as part:
        assert part == Path(os.devnull)
