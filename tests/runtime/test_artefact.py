"""What is known of a model, on disk: later processes compose and compile nothing anew, and what lies in the file can't
do harm."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from models import build
from ort_gpu_ep import InferenceSession, store
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import pipelines
from ort_gpu_ep.device.cache import Cache
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.files import PRIVATE_FILE, fingerprint
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.memo import Memo
from ort_gpu_ep.providers import EP_NAME
from ort_gpu_ep.runtime import artefact as module
from ort_gpu_ep.runtime.artefact import FORMAT, Artefact, Pipeline, key_of, opened
from ort_gpu_ep.session import early, session
from ort_gpu_ep.shaders import composer
from ort_gpu_ep.webgpu.blobs import MOST_NBYTES, Blobs, current
from tests.artefacts import CONFIG, change, only_file, opened_anew, read, read_all, seal

pytestmark = pytest.mark.usefixtures("known_plans")

ROOT = Path(__file__).parents[2]
LAYOUT = (False, True), False, 0
PIPELINE = Pipeline("a.wgsl", "fn main() {}", "node/a.wgsl", LAYOUT)
BLOB = b"compiled\n\0"
BROKEN = Pipeline("a.wgsl", "fn main( {", "node/a.wgsl", LAYOUT)
SIGNATURE = ("a.wgsl", 1, 2.5, True)
TEXT = "fn element(i: u32) -> y_t { return y_t(ä); }\n"
GPU = {"placement": "gpu", "strict": "1", "isolation": "none"}

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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(build("lenet5").SerializeToString())
    return path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The device of these sessions, without any pipeline."""
    device = open_gpu(resolve({"placement": "gpu"}))
    monkeypatch.setattr(device, "pipelines", Cache(512))
    return device


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions begin nothing ahead by themselves."""
    monkeypatch.setattr(session, "begin", lambda *given: None)


def session_of(model: Path | bytes, cache: Path, **options: str) -> InferenceSession:
    return InferenceSession(model, provider_options={**GPU, "cache_dir": str(cache), **options})


def feeds_of(opened_session: Any) -> dict[str, Any]:
    (given,) = opened_session.get_inputs()
    return {given.name: np.random.default_rng().standard_normal(given.shape, np.float32)}


def end_of_early() -> None:
    for thread in threading.enumerate():
        if thread.name == "ort_gpu_ep-early":
            thread.join(120)


def whole(known: Artefact) -> None:
    """An artefact with one of each."""
    known.text(SIGNATURE, lambda: TEXT)
    known.answer("key", bytes, lambda: b"an answer", bytes)
    library_keeps(known.note(PIPELINE), BLOB)
    known.save()


def library_keeps(blobs: Blobs, blob: bytes, key: bytes = b"key") -> bytes:
    """As a library does while it compiles. Returns what it was given."""
    with blobs.lent():
        lent = current()
        assert lent is blobs
        there = lent.load(key)
        if not there:
            lent.store(key, blob)
    assert current() is None
    return there


def is_whole(known: Artefact) -> bool:
    return (
        known.text(SIGNATURE, lambda: "made") == TEXT
        and known.answer("key", bytes, lambda: b"made", bytes) == b"an answer"
        and known.pipelines == (PIPELINE,)
        and library_keeps(known.note(PIPELINE), b"made") == BLOB
    )


# ---- sessions


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
    only_file(tmp_path / "cache")


@pytest.mark.usefixtures("alone")
def test_a_model_has_one_file_with_each_text_once(model: Path, gpu: Gpu, tmp_path: Path) -> None:
    session_of(model, tmp_path)
    index, texts, answers = read(only_file(tmp_path))
    assert len(answers) == 2, "the partitioning, and the plan"
    assert len({*texts}) == len(texts) == len(index["keys"])
    assert {number for number, *_ in index["pipelines"]} == {*range(len(texts))}


@pytest.mark.usefixtures("alone")
def test_a_copy_of_a_model_and_its_bytes_are_known_and_another_model_is_not(
    model: Path, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, copy = tmp_path / "cache", tmp_path / "copy.onnx"
    shutil.copy(model, copy)
    session_of(model, cache)
    path = only_file(cache)
    for same in (copy, model.read_bytes()):
        monkeypatch.setattr(composer, "_sources", Memo(64))
        monkeypatch.setattr(composer, "_composed", lambda *given: never())
        session_of(same, cache)
        assert only_file(cache) == path
    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "begin", lambda *given: None)
        session_of(build("mlp_16x3").SerializeToString(), cache)
        session_of(model, cache, fusion="0")
    assert len([*(cache / "models").iterdir()]) == 3


def test_the_name_tells_models_adapters_and_options_apart(model: Path) -> None:
    data = model.read_bytes()
    assert fingerprint(str(model)) == fingerprint(data)
    assert len({fingerprint(data), fingerprint(data + b" "), fingerprint(data[:-1] + b"\xff"), fingerprint(b"")}) == 4
    assert fingerprint(str(model.parent / "nothing")) == fingerprint(str(model.parent)) == fingerprint("a\0b") == ""
    config = Config()
    keys = [
        key_of("a", "gpu", config),
        key_of("b", "gpu", config),
        key_of("a", "another", config),
        key_of("a", "gpu", replace(config, fusion=False)),
    ]
    assert len({*keys}) == 4
    assert key_of("a", "gpu", replace(config, placement="gpu", load="off")) == keys[0], "which change no plan"


def test_onnxruntimes_own_sessions_know_models_too(
    model: Path, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the path that it tells, which gives the file that our sessions have; without one by the graph."""
    cache = tmp_path / "cache"
    session_of(model, cache)
    end_of_early()
    ours = only_file(cache)
    monkeypatch.setattr(composer, "_sources", Memo(64))
    providers = [(EP_NAME, {**GPU, "cache_dir": str(cache)}), "CPUExecutionProvider"]
    kind = InferenceSession.__mro__[1]
    assert issubclass(kind, onnxruntime.InferenceSession)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composer, "_composed", lambda *given: never())
        kind(str(model), providers=providers)
        assert only_file(cache) == ours
    for _ in range(2):
        kind(model.read_bytes(), providers=providers)
        assert len([*(cache / "models").iterdir()]) == 2
        monkeypatch.setattr(composer, "_composed", lambda *given: never())
        monkeypatch.setattr(composer, "_sources", Memo(64))


def test_an_isolated_worker_and_its_parent_write_one_file(model: Path, tmp_path: Path) -> None:
    """The parent what goes where, the worker the plan; a later worker plans and composes nothing."""
    before = None
    for _ in range(2):
        isolated = session_of(model, tmp_path / "cache", isolation="process", health="off")
        isolated.run(None, feeds_of(isolated))
        data = only_file(tmp_path / "cache").read_bytes()
        index, texts, answers = read(only_file(tmp_path / "cache"))
        assert len(answers) == 2
        assert len(texts) == len(index["keys"]) > 3
        assert before in (None, data), "there was something new"
        before = data
        del isolated
        gc.collect()


@pytest.mark.usefixtures("alone")
def test_what_a_session_used_is_there_for_the_next_one(
    model: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = session_of(model, tmp_path / "cache")
    made = gpu.pipelines.made
    assert made > 3
    del first
    gc.collect()
    monkeypatch.setattr(gpu, "pipelines", Cache(512))
    path = only_file(tmp_path / "cache")
    Artefact(path, path.read_bytes().split()[3].decode()).compile(gpu, "auto")
    assert gpu.pipelines.made == made
    session_of(model, tmp_path / "cache")
    assert gpu.pipelines.made == made, "a session compiled what was there"


def test_a_session_of_a_known_model_begins_with_them(
    model: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever found out, and however: where a session runs, and what it goes by, changes no pipeline."""
    compiled_by = []
    compile_one = pipelines._compile

    def noted(*given: Any) -> Any:
        compiled_by.append(threading.current_thread().name)
        return compile_one(*given)

    monkeypatch.setattr(pipelines, "_compile", noted)
    options = {"cache_dir": str(tmp_path / "cache"), "strict": "1", "isolation": "none", "adapter": "0"}
    session_of(model, tmp_path / "cache", adapter="0")
    end_of_early()
    assert compiled_by
    assert not any("ahead" in name for name in compiled_by)
    first = len(compiled_by)
    monkeypatch.setattr(gpu, "pipelines", Cache(512))
    begun = early.begin(resolve({"placement": "auto", "load": "off", **options}), str(model))
    assert begun is not None
    with begun.known() as known:
        assert known is not None
        assert len(known.pipelines) == first
    end_of_early()
    assert len(compiled_by) == 2 * first
    assert all("ahead" in name for name in compiled_by[first:])
    session_of(model, tmp_path / "cache", adapter="0")
    end_of_early()
    assert len(compiled_by) == 2 * first


THREAD = """
import sys
from ort_gpu_ep.config import resolve
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.health.verdicts import key_of as device_of
from ort_gpu_ep.session import early

options = {"placement": "gpu", "strict": "1", "cache_dir": sys.argv[2], "isolation": "none"}
gpu = open_gpu(resolve({**options, "health": "off"}))
early.load(*early.OF_THE_THREAD)
before = {*sys.modules}
artefact = early._opened(resolve(options), sys.argv[1], device_of(gpu.info))
artefact.compile(gpu, "auto")
print(len(artefact.pipelines), *(name for name in sys.modules if name.startswith("ort_gpu_ep") and name not in before))
"""


def test_the_thread_loads_modules_in_turn_with_others(model: Path, tmp_path: Path) -> None:
    """Two threads that load modules of one folder at a time can end in an ImportError, in whichever of them."""
    for script in (COUNTED, THREAD):
        command = [sys.executable, "-c", script, str(model), str(tmp_path / "cache"), str(tmp_path / "y.npy")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    pipelines_there, *loaded = done.stdout.split()
    assert int(pipelines_there) > 3
    assert loaded == []


@pytest.mark.usefixtures("alone")
def test_texts_of_others_are_compiled_and_never_used(model: Path, gpu: Gpu, tmp_path: Path) -> None:
    """What does not compile is passed over; what differs from what the session composes has no reader."""
    cache = tmp_path / "cache"
    first = session_of(model, cache)
    feeds = feeds_of(first)
    (want,) = first.run(None, feeds)
    del first
    gc.collect()
    path = only_file(cache)
    known = Artefact(path, path.read_bytes().split()[3].decode())
    for pipeline in known.pipelines:
        known.note(replace(pipeline, text=pipeline.text.replace("+", "-")))
    known.note(BROKEN)
    known.save()
    session_of(model, cache)
    Artefact(path, known.key).compile(gpu, "auto")
    np.testing.assert_array_equal(session_of(model, cache).run(None, feeds)[0], want)


def test_a_session_whose_texts_were_spoiled_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("lenet5").SerializeToString()
    first = session_of(model, tmp_path)
    feeds = feeds_of(first)
    (want,) = first.run(None, feeds)
    del first
    gc.collect()
    path = only_file(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"u32", b"i32"))
    monkeypatch.setattr(composer, "_sources", Memo(64))
    np.testing.assert_array_equal(session_of(model, tmp_path).run(None, feeds)[0], want)
    assert b"u32" in path.read_bytes(), "it is written anew"


@pytest.mark.parametrize(
    "options", [{"isolation": "process"}, {"health": "off"}, {"quirks": "none.json"}, {"adapter": "no such"}]
)
def test_nothing_begins_where_the_adapter_is_not_known_to_be_in_order(options: dict[str, str], model: Path) -> None:
    assert early.begin(resolve({"placement": "gpu", **options}), str(model)) is None


def test_a_model_that_is_not_there(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load = list[tuple[str, ...]](), early.load
    monkeypatch.setattr(early, "load", lambda *names: loaded.append(names) or load(*names))
    begun = early.begin(resolve({"placement": "gpu"}), str(tmp_path / "nothing"))
    assert begun is not None
    with begun.known() as known:
        assert known is None
    assert early.OF_THE_THREAD in loaded
    with pytest.raises(Exception, match="nothing"):
        session_of(tmp_path / "nothing", tmp_path)


# ---- one file


def test_what_was_written_is_read(tmp_path: Path) -> None:
    whole(opened_anew(tmp_path))
    assert is_whole(opened_anew(tmp_path))
    path = only_file(tmp_path)
    assert path.read_bytes().startswith(f"{FORMAT} {opened_anew(tmp_path).key} ".encode())
    assert os.name != "posix" or path.stat().st_mode & 0o777 == PRIVATE_FILE


def test_nothing_new_is_nothing_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(opened_anew(tmp_path))
    monkeypatch.setattr(store, "replace", lambda path, data: pytest.fail("there is nothing new"))
    known = opened_anew(tmp_path)
    assert is_whole(known)
    known.note(PIPELINE)
    known.save()


def test_other_code_and_signatures_have_texts_of_their_own(tmp_path: Path) -> None:
    whole(opened_anew(tmp_path))
    other = opened_anew(tmp_path, "another adapter or version")
    assert other.text(SIGNATURE, lambda: "newer") == "newer"
    known = opened_anew(tmp_path)
    assert known.text((*SIGNATURE[:1], 1.0, 2.5, True), lambda: "1.0 is not 1") == "1.0 is not 1"
    assert known.text(SIGNATURE, never) == TEXT


def test_pipelines_that_are_not_used_any_more_go(tmp_path: Path) -> None:
    for label in ("one", "two"):
        known = opened_anew(tmp_path)
        known.note(Pipeline("a.wgsl", label, label, ((True,), False, 0)))
        known.note(PIPELINE)
        known.save()
    index, texts, _ = read(only_file(tmp_path))
    assert [row[2] for row in index["pipelines"]] == ["node/a.wgsl", "two"]
    assert texts == [b"fn main() {}", b"two"]


def test_sessions_of_a_process_share_it(tmp_path: Path) -> None:
    first = opened(str(tmp_path), "a" * 64)
    assert opened(str(tmp_path), "a" * 64) is first
    assert opened(str(tmp_path), "b" * 64) is not first


def test_two_processes_write(tmp_path: Path) -> None:
    """Each has read the file before the other one has written."""
    whole(opened_anew(tmp_path))
    one, other = opened_anew(tmp_path), opened_anew(tmp_path)
    for known, name in ((one, "one"), (other, "other")):
        assert is_whole(known)
        known.note(PIPELINE)
        known.text(name, lambda name=name: name)  # type: ignore[misc]
        known.answer(name, bytes, name.encode, bytes)
        known.note(replace(PIPELINE, text=name))
        known.save()
    last = opened_anew(tmp_path)
    for name in ("one", "other"):
        assert last.text(name, never) == name
        assert last.answer(name, bytes, lambda: b"made", bytes) == name.encode()
    assert {p.text for p in last.pipelines} == {PIPELINE.text, "one", "other"}
    one.text("third", lambda: "third")
    one.save()
    assert opened_anew(tmp_path).text("other", never) == "other", "and one that had written it before"


def test_many_write_and_remove_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with an object of its own, as other processes have."""
    monkeypatch.setattr(module, "MAX_FILES", 3)
    wrong = list[object]()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(30):
                known = opened_anew(tmp_path, model=str(rng.randrange(6)))
                for k in (rng.randrange(12) for _ in range(4)):
                    text = known.text(k, lambda k=k: f"{k} " * 500)  # type: ignore[misc]
                    answer = known.answer(str(k), bytes, lambda k=k: b"%d " % k * 500, bytes)  # type: ignore[misc]
                    if text != f"{k} " * 500 or answer != text.encode():
                        wrong.append((k, text[:50], answer[:50]))
                    known.save()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not [f for f in (tmp_path / "models").iterdir() if f.suffix], "no part of a file stays"


# ---- what lies in the folder


def another(path: Path) -> None:
    """A whole file of another key: its first line tells."""
    other = path.parents[2] / "other"
    known = opened_anew(other, "another")
    known.answer("key", bytes, lambda: b"harm", bytes)
    known.save()
    only_file(other).replace(path)


def linked(path: Path) -> None:
    path.rename(path.parents[1] / "real")
    path.symlink_to(path.parents[1] / "real")


SPOILED: dict[str, Callable[[Path], Any]] = {
    "empty": lambda f: f.write_bytes(b""),
    "cut short": lambda f: f.write_bytes(f.read_bytes()[:-3]),
    "cut in its index": lambda f: f.write_bytes(f.read_bytes()[:150]),
    "longer": lambda f: f.write_bytes(f.read_bytes() + b" "),
    "another text below": lambda f: f.write_bytes(f.read_bytes().replace(b"return", b"harm()")),
    "another format": lambda f: f.write_bytes(f.read_bytes().replace(FORMAT.encode(), FORMAT[:-1].encode() + b"0", 1)),
    "another's": another,
    "no seal": lambda f: f.write_bytes(f.read_bytes().split(b"\n", 1)[1]),
    "no text": lambda f: f.write_bytes(bytes(range(256)) * 9),
    "too long": lambda f: os.truncate(f, 1 << 40),
}
POSIX: dict[str, Callable[[Path], Any]] = {
    "a link": linked,
    "a FIFO": lambda f: (f.unlink(), os.mkfifo(f)),
    "writable by all": lambda f: f.chmod(0o666),
    "a link to nothing": lambda f: (f.unlink(), f.symlink_to("/nonexistent/x")),
}


def with_blobs(index: dict[str, Any], blobs: dict[str, Any]) -> dict[str, Any]:
    return {**index, "pipelines": [[*row[:-1], blobs] for row in index["pipelines"]]}


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda index: [index],
    "a text": lambda index: "harm",
    "no texts": lambda index: {k: v for k, v in index.items() if k != "texts"},
    "texts that are none": lambda index: {**index, "texts": 3},
    "a text less": lambda index: {**index, "texts": index["texts"][:-1]},
    "a text of no bytes": lambda index: {**index, "texts": ["1"]},
    "a text of a truth": lambda index: {**index, "texts": [*index["texts"], True, -1]},
    "a cut within a letter": lambda index: {
        **index,
        "texts": [len("fn main() {}") + len("fn element(i: u32) -> y_t { return y_t(") + 1, len(" ); }\n")],
    },
    "negative texts": lambda index: {**index, "texts": [-n for n in index["texts"]]},
    "answers that are none": lambda index: {**index, "answers": [1, 2]},
    "a longer answer": lambda index: {**index, "answers": {"key": 1 << 40}},
    "many answers": lambda index: {**index, "answers": {**index["answers"], **{str(k): 0 for k in range(300)}}},
    "many texts": lambda index: {**index, "texts": [*index["texts"], *[0] * 4000]},
    "a key of no text": lambda index: {**index, "keys": {"k": 9}},
    "a key of a negative text": lambda index: {**index, "keys": {"k": -1}},
    "a key of a truth": lambda index: {**index, "keys": {"k": True}},
    "pipelines that are none": lambda index: {**index, "pipelines": 3},
    "short rows": lambda index: {**index, "pipelines": [[0, "a.wgsl"]]},
    "numbers": lambda index: {**index, "pipelines": [[0, 1, 2, [True], False, 0, {}]]},
    "a pipeline of no text": lambda index: {**index, "pipelines": [[7, "a", "b", [True], False, 0, {}]]},
    "no flags": lambda index: {**index, "pipelines": [[0, "a", "b", [1], False, 0, {}]]},
    "a negative count": lambda index: {**index, "pipelines": [[0, "a", "b", [True], False, -1, {}]]},
    "a truth for a count": lambda index: {**index, "pipelines": [[0, "a", "b", [True], False, True, {}]]},
    "many pipelines": lambda index: {**index, "pipelines": index["pipelines"] * 2000},
    "no blobs": lambda index: {**index, "pipelines": [row[:-1] for row in index["pipelines"]]},
    "blobs that are none": lambda index: {**index, "pipelines": [[*row[:-1], [9]] for row in index["pipelines"]]},
    "a longer blob": lambda index: with_blobs(index, {"a": 1 << 40}),
    "a blob of a truth": lambda index: with_blobs(index, {"a": True}),
    "a negative blob": lambda index: with_blobs(index, {"a": -9, "b": 18}),
    "many blobs": lambda index: with_blobs(index, {str(k): 1 for k in range(9)}),
    "nested": lambda index: {**index, "pipelines": json.loads("[" * 900 + "]" * 900)},
}


@pytest.mark.parametrize("how", [*SPOILED, *(POSIX if os.name == "posix" else ()), *HOSTILE])
def test_a_file_that_is_not_as_it_was_is_made_anew(how: str, gpu: Gpu, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    whole(opened_anew(cache))
    path = only_file(cache)
    before = path.read_bytes()
    if how in HOSTILE:
        change(path, HOSTILE[how])
    else:
        {**SPOILED, **POSIX}[how](path)
    spoiled = opened_anew(cache)
    assert spoiled.pipelines == ()
    spoiled.compile(gpu, "auto")
    assert gpu.pipelines.made == 0
    assert spoiled.text(SIGNATURE, lambda: "made") == "made"
    assert spoiled.answer("key", bytes, lambda: b"made", bytes) == b"made"
    whole(opened_anew(cache))
    assert not path.is_symlink()
    assert path.read_bytes() == before
    assert is_whole(opened_anew(cache))


def test_an_answer_that_is_none_is_made_anew_and_the_rest_stays(tmp_path: Path) -> None:
    whole(opened_anew(tmp_path))
    path = only_file(tmp_path)
    index, texts, _, blobs = read_all(path)
    spoiled = b"".join([*texts, b"harm", *blobs])
    seal(path, json.dumps({**index, "answers": {"key": 4}}).encode() + b"\n" + spoiled)

    def refused(content: bytes) -> bytes:
        raise ValueError(f"got {content!r}, expected an answer")

    known = opened_anew(tmp_path)
    assert known.answer("key", refused, lambda: b"an answer", bytes) == b"an answer"
    assert known.text(SIGNATURE, never) == TEXT
    known.note(PIPELINE)
    known.save()
    assert is_whole(opened_anew(tmp_path))


def test_an_index_with_one_place_changed_is_refused_or_harmless(tmp_path: Path) -> None:
    """No other exception than those that stand for a file that can't be used."""
    whole(opened_anew(tmp_path))
    path, rng, refused = only_file(tmp_path), random.Random(7), 0
    index, *parts = read_all(path)
    values = [0, 1, -1, 3, 1 << 31, 1 << 62, 1.5, True, None, "", "a", [], {}, [[]], {"a": 0}]
    for _ in range(400):
        changed: Any = json.loads(json.dumps(index))
        place, key = changed, rng.choice(sorted(index))
        while isinstance(place[key], (list, dict)) and place[key] and rng.random() < 0.8:
            place = place[key]
            key = rng.choice(sorted(place)) if isinstance(place, dict) else rng.randrange(len(place))
        place[key] = rng.choice(values)
        seal(path, json.dumps(changed).encode() + b"\n" + b"".join(piece for part in parts for piece in part))
        known = opened_anew(tmp_path)
        refused += not known.pipelines
        assert all(p.text in (TEXT, PIPELINE.text) for p in known.pipelines)
    assert 100 < refused < 400


def test_a_folder_in_place_of_a_file_is_left_alone(tmp_path: Path) -> None:
    whole(opened_anew(tmp_path))
    path = only_file(tmp_path)
    path.unlink()
    path.mkdir()
    whole(opened_anew(tmp_path))
    assert only_file(tmp_path) == path, "no part of a file stays"


def test_a_full_disk_and_a_folder_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models").write_text("in the way")
    known = opened_anew(tmp_path)
    with caplog.at_level("INFO", "ort_gpu_ep"):
        for k in range(3):
            assert known.text(k, lambda: TEXT) == TEXT
            known.save()
    assert len([r for r in caplog.records if "can't be written" in r.message]) == 1
    calls = []

    def full(path: Path, data: bytes) -> None:
        calls.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "replace", full)
    known = opened_anew(tmp_path / "other")
    for k in range(3):
        assert known.text(k, lambda: TEXT) == TEXT
        known.save()
    assert len(calls) == 1, "it is not tried for each shader"


# ---- limits


def test_models_that_were_not_opened_for_the_longest_time_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 8)
    (tmp_path / "models").mkdir()
    left = tmp_path / "models" / "killed.part"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))

    for k in range(7):
        whole(opened_anew(tmp_path, model=str(k)))
        os.utime(opened_anew(tmp_path, model=str(k)).path, (10 + k, 10 + k))
    assert is_whole(opened_anew(tmp_path, model="0")), "opened, and nothing written"
    paths = {str(k): tmp_path / "models" / key_of(str(k), "an adapter", CONFIG)[:32] for k in range(8)}
    whole(opened_anew(tmp_path, model="7"))
    assert not left.exists()
    assert {model for model, path in paths.items() if path.exists()} == {"0", "3", "4", "5", "6", "7"}, (
        "down to three quarters"
    )


def test_the_folder_has_no_more_bytes_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NBYTES", 3000)
    for k in range(12):
        known = opened_anew(tmp_path, model=str(k))
        known.text(k, lambda: TEXT * 10)
        known.save()
        assert sum(f.stat().st_size for f in (tmp_path / "models").iterdir()) <= 3000


def test_what_was_asked_for_last_stays_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_TEXTS", "MAX_ANSWERS", "MAX_PIPELINES"):
        monkeypatch.setattr(module, limit, 4)
    known = opened_anew(tmp_path)
    for k in range(4):
        known.text(k, lambda k=k: str(k))  # type: ignore[misc]
        known.answer(str(k), bytes, lambda k=k: b"%d" % k, bytes)  # type: ignore[misc]
    known.save()
    again = opened_anew(tmp_path)
    assert again.text(0, never) == "0"
    assert again.answer("0", bytes, lambda: b"made", bytes) == b"0"
    for k in (4, 5):
        again.text(k, lambda k=k: str(k))  # type: ignore[misc]
        again.answer(str(k), bytes, lambda k=k: b"%d" % k, bytes)  # type: ignore[misc]
    for k in range(6):
        again.note(replace(PIPELINE, text=str(k)))
    again.save()
    index, texts, answers = read(only_file(tmp_path))
    assert [*index["answers"]] == ["3", "0", "4", "5"]
    assert answers == [b"3", b"0", b"4", b"5"]
    assert [texts[number] for number in index["keys"].values()] == [b"3", b"0", b"4", b"5"]
    assert len(index["pipelines"]) == 4


def test_blobs_are_those_that_the_library_asked_for_last(tmp_path: Path) -> None:
    """Another version of it has other keys: what it stored goes with the first that is new."""
    whole(opened_anew(tmp_path))
    known = opened_anew(tmp_path)
    assert library_keeps(known.note(PIPELINE), b"newer", b"another key") == b""
    known.save()
    index, _, _, blobs = read_all(only_file(tmp_path))
    assert blobs == [b"newer"]
    assert [[*row[-1].values()] for row in index["pipelines"]] == [[len(b"newer")]]
    assert library_keeps(opened_anew(tmp_path).note(PIPELINE), b"", b"another key") == b"newer"


def test_two_processes_keep_blobs(tmp_path: Path) -> None:
    whole(opened_anew(tmp_path))
    one, other = opened_anew(tmp_path), opened_anew(tmp_path)
    for known, name in ((one, "one"), (other, "other")):
        known.note(PIPELINE)
        library_keeps(known.note(replace(PIPELINE, text=name)), name.encode())
        known.save()
    last = opened_anew(tmp_path)
    for name in ("one", "other"):
        assert library_keeps(last.note(replace(PIPELINE, text=name)), b"made") == name.encode()
    assert library_keeps(last.note(PIPELINE), b"made") == BLOB


def test_what_is_too_much_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = MOST_NBYTES[1]
    monkeypatch.setattr("ort_gpu_ep.webgpu.blobs.MOST_NBYTES", (100, most))
    monkeypatch.setattr(module, "MAX_BLOBS_NBYTES", 150)
    known = opened_anew(tmp_path)
    pipelines = [replace(PIPELINE, text=str(k)) for k in range(3)]
    library_keeps(known.note(pipelines[0]), bytes(101))
    for k in (1, 2):
        library_keeps(known.note(pipelines[k]), bytes(90))
    known.save()
    assert [[*row[-1].values()] for row in read(only_file(tmp_path))[0]["pipelines"]] == [[], [], [90]]
    blobs = Blobs()
    with blobs.lent():
        for k in range(20):
            blobs.store(b"%d" % k, b"blob")
    assert len(blobs.kept) == most


def test_blobs_are_lent_to_one_thread(tmp_path: Path) -> None:
    blobs, seen = Blobs(), list[object]()
    with blobs.lent():
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_file_has_no_more_bytes_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWERS_NBYTES", 100)
    monkeypatch.setattr(module, "MAX_TEXTS_NBYTES", 100)
    known = opened_anew(tmp_path)
    for k in range(9):
        known.text(k, lambda k=k: f"{k}" * 30)  # type: ignore[misc]
        known.answer(str(k), bytes, lambda k=k: b"%d" % k * 30, bytes)  # type: ignore[misc]
    known.answer("large", bytes, lambda: bytes(1000), bytes)
    known.save()
    index, _, answers = read(only_file(tmp_path))
    assert len(index["keys"]) == 3
    assert sum(map(len, answers)) <= 100
    assert opened_anew(tmp_path).text(8, never) == "8" * 30
