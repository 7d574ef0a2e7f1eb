"""Composed shaders on disk: later processes compose nothing, and what lies in the folder can't do harm."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import build
from ort_gpu_ep import InferenceSession, store
from ort_gpu_ep.memo import Memo
from ort_gpu_ep.runtime import texts
from ort_gpu_ep.runtime.texts import Texts
from ort_gpu_ep.shaders import composer

ROOT = Path(__file__).parents[2]
SIGNATURE = ("a.wgsl", 1, 2.5, True)
TEXT = "fn element(i: u32) -> y_t { return y_t(ä); }\n"

COUNTED = """
import sys
import numpy as np
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.shaders import composer
made, whole = [], composer._composed
composer._composed = lambda *given: made.append(given[0].shader) or whole(*given)
session = InferenceSession(sys.argv[1], provider_options={"placement": "gpu", "strict": "1", "cache_dir": sys.argv[2], "isolation": "none"})
rng = np.random.default_rng(0)
shape = [d if isinstance(d, int) else 3 for d in session.get_inputs()[0].shape]
np.save(sys.argv[3], session.run(None, {session.get_inputs()[0].name: rng.standard_normal(shape, np.float32)})[0])
print(len(made), *(name for name in ("ort_gpu_ep.ops", "ort_gpu_ep.partitioner.decide", "onnx") if name in sys.modules))
"""


def never() -> str:
    raise AssertionError("the text was there")


def only_file(folder: Path) -> Path:
    (found,) = (folder / "shaders").iterdir()
    return found


@pytest.mark.parametrize("name", ["squeezenet1_1", "har_lstm", "encoder"])
def test_a_known_model_has_nothing_planned_and_composed_in_another_process(name: str, tmp_path: Path) -> None:
    """Python hashes strings by another seed in each process: what a plan or a text is found by must not follow from
    that."""
    (tmp_path / "m.onnx").write_bytes(build(name).SerializeToString())
    counts = []
    for seed in ("1", "2"):
        command = [
            sys.executable,
            "-c",
            COUNTED,
            str(tmp_path / "m.onnx"),
            str(tmp_path / "cache"),
            str(tmp_path / f"{seed}.npy"),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        count, *loaded = done.stdout.splitlines()[-1].split()
        counts.append(int(count))
    assert counts[0] > 3
    assert counts[1] == 0
    assert loaded == [], "rows and the operators' schemas are for who plans"
    np.testing.assert_array_equal(np.load(tmp_path / "1.npy"), np.load(tmp_path / "2.npy"))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert Texts(str(tmp_path), "code").get(SIGNATURE, lambda: TEXT) == TEXT
    assert Texts(str(tmp_path), "code").get(SIGNATURE, never) == TEXT
    if os.name == "posix":
        assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_other_code_has_texts_of_its_own(tmp_path: Path) -> None:
    assert Texts(str(tmp_path), "code").get(SIGNATURE, lambda: TEXT) == TEXT
    assert Texts(str(tmp_path), "newer").get(SIGNATURE, lambda: "newer") == "newer"
    assert Texts(str(tmp_path), "code").get((*SIGNATURE[:1], 1.0, 2.5, True), lambda: "1.0 is not 1") == "1.0 is not 1"
    assert Texts(str(tmp_path), "code").get(SIGNATURE, never) == TEXT


def another(file: Path) -> None:
    """A whole file, of another text: what belongs to its name tells it apart."""
    other = file.parent.parent / "other"
    Texts(str(other), "code").get("another", lambda: "harm")
    only_file(other).replace(file)


def linked(file: Path) -> None:
    file.rename(file.parent.parent / "real")
    file.symlink_to(file.parent.parent / "real")


SPOILED: dict[str, Callable[[Path], Any]] = {
    "empty": lambda f: f.write_bytes(b""),
    "cut short": lambda f: f.write_bytes(f.read_bytes()[:-3]),
    "another text below": lambda f: f.write_bytes(f.read_bytes().replace(b"return", b"harm()")),
    "another format": lambda f: f.write_bytes(f.read_bytes().replace(b"ort_gpu_ep 1", b"ort_gpu_ep 0", 1)),
    "another's": another,
    "no text": lambda f: f.write_bytes(bytes(range(256)) * 9),
    "too long": lambda f: os.truncate(f, 1 << 40),
}
POSIX: dict[str, Callable[[Path], Any]] = {
    "a link": linked,
    "a FIFO": lambda f: (f.unlink(), os.mkfifo(f)),
    "writable by all": lambda f: f.chmod(0o666),
    "a link to nothing": lambda f: (f.unlink(), f.symlink_to("/nonexistent/x")),
}


@pytest.mark.parametrize("how", [*SPOILED, *(POSIX if os.name == "posix" else ())])
def test_a_file_that_is_not_as_it_was_is_made_anew(how: str, tmp_path: Path) -> None:
    Texts(str(tmp_path), "code").get(SIGNATURE, lambda: TEXT)
    file = only_file(tmp_path)
    {**SPOILED, **POSIX}[how](file)
    made = []
    assert Texts(str(tmp_path), "code").get(SIGNATURE, lambda: made.append(1) or TEXT) == TEXT  # type: ignore[func-returns-value]
    assert made
    assert not file.is_symlink()
    assert Texts(str(tmp_path), "code").get(SIGNATURE, never) == TEXT, "it was replaced"


def test_a_folder_in_place_of_a_file_is_left_alone(tmp_path: Path) -> None:
    Texts(str(tmp_path), "code").get(SIGNATURE, lambda: TEXT)
    file = only_file(tmp_path)
    file.unlink()
    file.mkdir()
    assert [Texts(str(tmp_path), "code").get(SIGNATURE, lambda: TEXT) for _ in range(2)] == [TEXT] * 2
    assert list(file.parent.iterdir()) == [file], "no part of a file stays"


def test_a_full_disk_and_a_folder_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shaders").write_text("in the way")
    assert Texts(str(tmp_path), "code").get(SIGNATURE, lambda: TEXT) == TEXT
    calls = []

    def full(path: Path, data: bytes) -> None:
        calls.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "replace", full)
    kept = Texts(str(tmp_path / "other"), "code")
    assert [kept.get(k, lambda: TEXT) for k in range(3)] == [TEXT] * 3
    assert len(calls) == 1, "it is not tried for each shader"


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "LOOK_EVERY", 2)
    monkeypatch.setattr(texts, "MAX_FILES", 20)
    (tmp_path / "shaders").mkdir()
    left = tmp_path / "shaders" / "killed.part"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    kept = Texts(str(tmp_path), "code")
    for k in range(60):
        kept.get(k, lambda: TEXT)
        assert len(list((tmp_path / "shaders").iterdir())) <= 20 + 2
    assert not left.exists()
    monkeypatch.setattr(texts, "MAX_FILES", 10**6)
    monkeypatch.setattr(texts, "MAX_NBYTES", 3000)
    kept = Texts(str(tmp_path), "code")
    for k in range(60, 70):
        kept.get(k, lambda: TEXT)
    assert sum(f.stat().st_size for f in (tmp_path / "shaders").iterdir()) <= 3000 + 2 * 300


def test_many_write_and_remove_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with an object of its own, as other processes have."""
    monkeypatch.setattr(texts, "LOOK_EVERY", 2)
    monkeypatch.setattr(texts, "MAX_FILES", 6)
    wrong = []

    def work(seed: int) -> None:
        kept, rng = Texts(str(tmp_path), "code"), np.random.default_rng(seed)
        for k in map(int, rng.integers(0, 12, 150)):
            got = kept.get(k, lambda k=k: f"{k} " * 500)  # type: ignore[misc]
            if got != f"{k} " * 500:
                wrong.append((k, got[:50]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(f.suffix == ".wgsl" for f in (tmp_path / "shaders").iterdir())


def test_a_session_whose_texts_were_spoiled_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = (
        build("lenet5").SerializeToString(),
        {"placement": "gpu", "strict": "1", "cache_dir": str(tmp_path)},
    )
    session = InferenceSession(model, provider_options=options)
    feeds = {
        session.get_inputs()[0].name: np.random.default_rng(3).standard_normal(
            session.get_inputs()[0].shape, np.float32
        )
    }
    want = session.run(None, feeds)[0]
    del session
    monkeypatch.setattr(composer, "_sources", Memo(64))
    InferenceSession(model, provider_options=options)
    files = list((tmp_path / "shaders").iterdir())
    assert files
    for file in files:
        file.write_bytes(file.read_bytes().replace(b"u32", b"i32"))
    monkeypatch.setattr(composer, "_sources", Memo(64))
    np.testing.assert_array_equal(InferenceSession(model, provider_options=options).run(None, feeds)[0], want)
