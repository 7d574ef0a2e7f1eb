"""Whatever lies in the cache folder, reading it ends at once, gives nothing or what we could have written, and never
raises."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep
from ort_gpu_ep import register, store
from ort_gpu_ep.calibration import cache as calibration
from ort_gpu_ep.health import drivers, enumeration, markers, open_adapter, quirks, verdicts
from ort_gpu_ep.health.helper import list_adapters
from ort_gpu_ep.health.verdicts import Verdict
from ort_gpu_ep.kernels import profile
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.placement import NAMES
from ort_gpu_ep.placement.decisions import Decisions, Learnt
from ort_gpu_ep.plugin import weight_file
from tests.artefacts import seal
from tests.plugin.cases import assert_close, info, make_model, node, open_session, reference

pytestmark = pytest.mark.skipif(os.name != "posix", reason="FIFOs and symbolic links as POSIX has them")

HUGE = "9" * 400


def dump(path: Path, text: str) -> None:
    path.write_text(text)


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def bound(path: Path) -> None:
    """A socket in place of a file, whose path may be too long for one."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(here)


CONTENTS: dict[str, Callable[[Path], object]] = {
    "nested lists": lambda p: dump(p, "[" * 100_000),
    "nested objects": lambda p: dump(p, '{"a":' * 100_000 + "1" + "}" * 100_000),
    "a nested value": lambda p: dump(p, '{"format": 1, "disabled": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "nothing": lambda p: dump(p, ""),
    "half": lambda p: dump(p, '{"format": 1, "disa'),
    "no JSON": lambda p: dump(p, "\0\1"),
    "no text": lambda p: p.write_bytes(b'{"format": "\xff\xfe"}'),
    "Infinity": lambda p: dump(p, "Infinity"),
    "a number": lambda p: dump(p, "1"),
    "a text": lambda p: dump(p, '"format"'),
    "null": lambda p: dump(p, "null"),
    "a list": lambda p: dump(p, '[{"format": 1}]'),
    "no format": lambda p: dump(p, "{}"),
    "another format": lambda p: dump(p, '{"format": 99}'),
    "a list as format": lambda p: dump(p, '{"format": [1]}'),
    "a huge format": lambda p: dump(p, f'{{"format": {HUGE}}}'),
    "a huge integer": lambda p: dump(p, HUGE),
    "5,000 digits": lambda p: dump(p, '{"format": ' + "1" * 5000 + "}"),
    "unknown keys": lambda p: dump(p, '{"format": 1, "a": 1, "__class__": 2}'),
    "too much": lambda p: (dump(p, ""), os.truncate(p, store.MAX_NBYTES + 1)),
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": bound,
    "a link to nothing": lambda p: link(p, p.parent / "nothing"),
    "a link to itself": lambda p: link(p, p),
    "a link to a device": lambda p: link(p, Path("/dev/zero")),
    "a link to a file": lambda p: link(p, Path(__file__)),
    "not readable": lambda p: (dump(p, "{}"), p.chmod(0)),
}

WHOLE: dict[str, dict[str, Any]] = {
    "verdict": {
        "format": store.FORMAT,
        "disabled": [["softmax.wgsl", "why"]],
        "depth": "full",
        "strikes": 1,
        "probed": True,
        "trusted": ["pool"],
        "shown": [],
        "unchecked": ["pool.wgsl"],
        "doubtful": ["matvec"],
        "cures": [["sign_bits", "probe 'minus and abs' fails without it"]],
        "late": [["pool", ["MaxPool", "resize.wgsl"]]],
    },
    "drivers": {
        "format": store.FORMAT,
        "adapters": [
            {
                "index": 0,
                "name": "n",
                "type": "discrete",
                "backend": "Vulkan",
                "driver": "d",
                "vendor_id": 1,
                "device_id": 2,
                "pci": "0000:01:00.0",
                "uuid": "",
                "family": "radv",
                "driver_number": 1,
            }
        ],
        "trouble": "",
        "failures": 0,
        "until_s": 0.0,
    },
    "profile": {"format": store.FORMAT, "profile": GUESSED.as_dict()},
    "decisions": {
        "format": store.FORMAT,
        "candidate": "gpu",
        "sizes": [[[["x", [4, 4]]], 16.0]],
        "runs": {"gpu": {"busy": [[0, 1e-3, 5]]}},
        "floors": [0],
        "grows": {"gpu": 0.5},
        "times": {"cpu_s": [[0, "Relu", 1e-3]], "shapes": {"x": [4, 4]}},
    },
    "marker": {"pid": 4_000_000, "left": 0.0},
}
"""What each file holds where it is well."""

VALUES = (
    "Infinity",
    "-Infinity",
    "NaN",
    "1e999",
    HUGE,
    "-" + HUGE,
    "null",
    "[]",
    "{}",
    '"text"',
    "-1",
    "true",
    "[[[[1]]]]",
    '{"a": {"b": 1}}',
    "1e308",
)
"""What stands in place of each of their values."""


def file_of(kind: str, cache: Path) -> Path:
    name = {
        "verdict": "health/k.json",
        "drivers": f"health/drivers-{drivers.fingerprint(os.environ)}.json",
        "profile": "profiles/k.json",
        "decisions": "decisions/k.json",
        "marker": "health/k.9-ab.open",
    }[kind]
    return cache / name


def load(kind: str, cache: Path) -> object:
    """What the package makes of the file."""
    match kind:
        case "verdict":
            return verdicts.read(str(cache), "k")
        case "drivers":
            return enumeration._cached(str(cache))
        case "profile":
            return profile.read(str(cache), "k")
        case "decisions":
            return Decisions(str(cache), "k").found
        case _:
            return None if markers.take_stale(str(cache), "k") <= 1 else "too many"


def variants(kind: str) -> Iterator[str]:
    """The whole file with one value replaced, for each value at each depth."""

    def places(value: Any) -> Iterator[tuple[Any, Any]]:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            yield value, key
            yield from places(value[key])

    whole = json.loads(json.dumps(WHOLE[kind]))
    for holder, key in places(whole):
        kept = holder[key]
        holder[key] = "@"
        template = json.dumps(whole)
        holder[key] = kept
        yield from (template.replace('"@"', value) for value in VALUES)
        if isinstance(holder, dict):
            gone = holder.pop(key)
            yield json.dumps(whole)
            holder[key] = gone
    yield json.dumps({**whole, "more": 1})


@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_whole_is_read(kind: str, tmp_path: Path) -> None:
    path = file_of(kind, tmp_path)
    store.make_folder(path.parent)
    path.write_text(json.dumps(WHOLE[kind]))
    assert (load(kind, tmp_path) is None) == (kind == "marker")


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("kind", WHOLE)
def test_hostile_files(kind: str, content: str, tmp_path: Path) -> None:
    path = file_of(kind, tmp_path)
    store.make_folder(path.parent)
    CONTENTS[content](path)
    assert load(kind, tmp_path) is None


@pytest.mark.parametrize("kind", WHOLE)
def test_hostile_values(kind: str, tmp_path: Path) -> None:
    """Numbers that a file of ours can't have, other types, missing and unknown keys: nothing is read, or what we could
    have written."""
    path, seen = file_of(kind, tmp_path), 0
    store.make_folder(path.parent)
    for text in variants(kind):
        path.write_text(text)
        found = load(kind, tmp_path)
        assert (
            not (
                {"Infinity", "NaN", "1e999", HUGE}
                & set(text.replace("-", " ").replace("]", " ").replace("}", " ").replace(",", " ").split())
            )
            or found is None
        ), text[:300]
        if isinstance(found, Verdict):
            assert isinstance(found.strikes, int)
        if isinstance(found, Learnt):
            assert found.candidate in NAMES
        if isinstance(found, enumeration.Sight):
            assert all(isinstance(a.name, str) and isinstance(a.vendor_id, int) for a in found.adapters)
            assert bool(found.adapters) or found.trouble
        seen += 1
    assert seen > 30


def test_what_is_written_is_private(tmp_path: Path) -> None:
    """Whatever the umask."""
    before = os.umask(0)
    try:
        cache = tmp_path / "a" / "b"
        verdicts.write(str(cache), "k", Verdict())
        markers.leave(str(cache), "k")
        file = weight_file.WeightFile(str(cache), 1000)
        file.add("w", np.zeros(1000, "f"))
        file.close_writing()
        found = {p: stat.S_IMODE(p.lstat().st_mode) for p in [tmp_path / "a", *(tmp_path / "a").rglob("*")]}
    finally:
        os.umask(before)
        markers.remove_mine()
    assert len(found) >= 9
    assert {p: oct(mode) for p, mode in found.items() if mode != (0o700 if p.is_dir() else 0o600)} == {}
    file.remove()


def test_numbers_that_json_lacks_are_not_written(tmp_path: Path) -> None:
    assert not store.write(tmp_path / "x.json", {"a": float("inf")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, bound, lambda p: link(p, p.parent / "victim"), lambda p: link(p, Path("/dev/null"))]
)
def test_hostile_locks(make: Callable[[Path], object], tmp_path: Path) -> None:
    root = tmp_path / "weights"
    root.mkdir()
    make(root / "12-abcd.lock")
    folder = weight_file.WeightFolder(root)
    assert not (root / "victim").exists()
    folder.remove()


def test_a_lock_names_no_other_folder(tmp_path: Path) -> None:
    root = tmp_path / "weights"
    root.mkdir()
    (tmp_path / "kept").write_text("")
    for name in ("...lock", ".lock", "..lock", "x.lock"):
        (root / name).write_text("")
    (root / "x").mkdir()
    weight_file.WeightFolder(root).remove()
    assert (tmp_path / "kept").exists()
    assert (root / "x").exists()


def test_a_manifest_that_is_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "icd.json")
    dump(tmp_path / "deep.json", "[" * 100_000)
    drivers.fingerprint({"VK_DRIVER_FILES": os.pathsep.join(str(tmp_path / n) for n in ("icd.json", "deep.json"))})


@pytest.mark.parametrize("text", ["[" + "[" * 100_000, "[" + "1" * 5000 + "]", '[{"what": ' + "{" * 100_000])
def test_hostile_quirks_are_an_error_with_a_line(text: str) -> None:
    with pytest.raises(quirks.ConfigError, match="line 1"):
        quirks.parse(text, "mine.json")


MODEL = make_model(
    [node("Relu", "x", "h"), node("MatMul", "h W", "y")],
    [info("x", ["N", 160])],
    ["y"],
    {"W": np.random.default_rng(0).standard_normal((160, 160)).astype("f")},
)
X = np.random.default_rng(1).standard_normal((4, 160)).astype("f")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process: nothing is known."""
    register()
    monkeypatch.setattr(enumeration, "_seen", None)
    monkeypatch.setattr(open_adapter, "_known", {})
    monkeypatch.setattr(open_adapter, "QUICK_S", 0.1)
    monkeypatch.setattr(weight_file, "_folders", {})
    yield
    markers.remove_mine()


@pytest.mark.parametrize("content", ["nested lists", "a huge format", "a FIFO", "a folder", "a link to a device"])
def test_sessions_answer(content: str, tmp_path: Path, fresh: None) -> None:
    """With every file of the cache replaced, locks too."""
    cache = tmp_path / "cache"
    open_session(MODEL, cache_dir=str(cache)).run(x=X)
    files = [p for p in cache.rglob("*") if p.is_file()]
    assert len(files) >= 3, files
    for path in files:
        path.unlink()
        CONTENTS[content](path)
    os.mkfifo(cache / "weights" / "77-ff.lock")
    for module, name, value in (
        (enumeration, "_seen", None),
        (open_adapter, "_known", {}),
        (weight_file, "_folders", {}),
    ):
        setattr(module, name, value)
    opened = open_session(MODEL, cache_dir=str(cache))
    assert_close(opened.run(x=X), reference(MODEL, x=X))
    assert opened.state.gpu is not None


STATES = 100


@pytest.fixture
def quick_looks(fresh: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets what this process knows; what other processes would find out again, and what is measured, is known at
    once."""
    found = [dict(a) for a in list_adapters()]
    monkeypatch.setattr(enumeration, "list_adapters", lambda: found)
    monkeypatch.setattr(open_adapter, "quick", lambda info, *names: Verdict())
    monkeypatch.setattr(calibration, "measure", lambda gpu, **how: replace(GUESSED, adapter=gpu.info.name))

    def forget() -> None:
        markers.remove_mine()
        enumeration._seen = None
        for known in (open_adapter._known, calibration._known, weight_file._folders):
            known.clear()

    return forget


def test_a_hundred_states_and_a_hundred_right_answers(tmp_path: Path, quick_looks: Callable[[], None]) -> None:
    """Every file of a cache that sessions have filled is replaced, or one value in it; with each placement, again and
    again."""
    rng, cache = np.random.default_rng(13), tmp_path / "cache"
    want = reference(MODEL, x=X)[0]

    def answer(placement: str) -> None:
        quick_looks()
        options = {"placement": placement, "adapter": "software", "cache_dir": str(cache), "placement_budget_ms": "20"}
        session = ort_gpu_ep.InferenceSession(MODEL, provider_options=options)
        assert session.wait_ready(300.0)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], want, rtol=1e-4, atol=1e-4)
        if placement == "gpu":
            assert session.explain().count("gpu") > 0

    answer("auto")
    answer("gpu")
    quick_looks()
    whole = {p: p.read_bytes() for p in (*cache.rglob("*.json"), *(cache / "models").iterdir())}
    assert {p.parent.name for p in whole} == {"health", "profiles", "decisions", "models"}
    hostile = list(CONTENTS.values())
    for state in range(STATES):
        shutil.rmtree(cache)
        for path, data in whole.items():
            store.make_folder(path.parent)
            if state % 3 == 2 and path.suffix:
                path.write_text(_spoilt(data.decode(), rng))
            elif state % 3 == 2:
                path.write_bytes(data)
                line, rest = data.split(b"\n", 2)[1:]
                seal(path, _spoilt(line.decode(), rng).encode() + b"\n" + rest)
            else:
                hostile[state % len(hostile) if state % 3 else int(rng.integers(len(hostile)))](path)
        store.make_folder(cache / "weights")
        hostile[int(rng.integers(len(hostile)))](cache / "weights" / "12-ab.lock")
        answer("gpu" if state % 2 else "auto")


def _spoilt(text: str, rng: np.random.Generator) -> str:
    """JSON with a few of its values replaced."""
    words = [m.span() for m in re.finditer(r'(?<=[\s\[:])(?:-?\d[\d.e+-]*|"[^"]*"(?!:)|true|false)', text)]
    for start, stop in sorted((words[int(i)] for i in rng.integers(len(words), size=3)), reverse=True):
        text = text[:start] + VALUES[int(rng.integers(len(VALUES)))] + text[stop:]
    return text
