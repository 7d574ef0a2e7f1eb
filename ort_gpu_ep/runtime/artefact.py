"""What is known of a model, on disk: one sealed file for each model, adapter and set of options.

<cache>/models/<key> has what an earlier process worked out, by a hash of all that it follows from: answers (what the
partitioner decided, and the plans: known_plans.py) and the texts of shaders, each once. Its pipelines are numbers of
texts, with their layouts: they are compiled on threads beside what Python and onnxruntime do until they are wanted.
Where the library keeps what it has compiled (webgpu/blobs.py), that is there, too. Weights are in none.

The key names the model by the beginning of its file, so that a copy of it is known, too. Another model may have the
same key: it shares the file, and finds only what belongs to it. A file that is not as it was written, or that somebody
else may have written, is not used, and replaced.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ort_gpu_ep import store
from ort_gpu_ep.config import NO_PLAN, OPTIONS, Config
from ort_gpu_ep.device.background import ending
from ort_gpu_ep.errors import DeviceError, ShaderError
from ort_gpu_ep.files import Identity, identity
from ort_gpu_ep.shaders import compose
from ort_gpu_ep.webgpu.blobs import MOST_NBYTES, Blobs

if TYPE_CHECKING:
    from ort_gpu_ep.device.gpu import Gpu
    from ort_gpu_ep.device.pipelines import Composer, Layout

log = logging.getLogger("ort_gpu_ep")

T = TypeVar("T")
V = TypeVar("V")

FORMAT = "ort_gpu_ep model 2"

NO_MATTER = NO_PLAN | {"placement"}
"""Options that change no pipeline. A plan's answer names all that it follows from by itself."""

MAX_FILES, MAX_NBYTES = 128, 128 << 20
"""Of the folder. ResNet-50 takes 0.5 MB. What was not opened for the longest time goes first."""

MAX_ANSWERS, MAX_ANSWERS_NBYTES = 256, 16 << 20
"""Of one file, as the other limits. A model that one partition runs has two or three answers, ResNet-50's plan has
0.4 MB. What was not asked for the longest time goes first."""

MAX_TEXTS, MAX_TEXTS_NBYTES = 2048, 8 << 20
"""ResNet-50 has 48 texts of 1 to 75 kB."""

MAX_PIPELINES, MAX_BINDINGS = 1024, 64

MAX_BLOBS, MAX_BLOBS_NBYTES = MOST_NBYTES[1], 32 << 20
"""Of one pipeline, and of all: SqueezeNet's 47 have 1.1 MB on lavapipe."""

MAX_FILE_NBYTES = MAX_ANSWERS_NBYTES + 3 * MAX_TEXTS_NBYTES + MAX_BLOBS_NBYTES


@dataclass(frozen=True, slots=True)
class Pipeline:
    """shader: the file that its text is made of. label: what errors call it. layout: see pipelines.Layout."""

    shader: str
    text: str
    label: str
    layout: Layout

    @property
    def key(self) -> Hashable:
        """What tells it from others of a model."""
        return self.text, self.layout[2]


@dataclass(slots=True)
class Content:
    """What a file holds, the most recently used last. texts, answers: by hashes of what they follow from. blobs: of
    pipelines, by the same keys."""

    texts: dict[str, str] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    pipelines: dict[Hashable, Pipeline] = field(default_factory=dict)
    blobs: dict[Hashable, Blobs] = field(default_factory=dict)


def key_of(model: str, adapter: str, config: Config) -> str:
    """Names a file. model: see files.fingerprint. adapter: with its driver and this package's code, see
    verdicts.key_of."""
    options = (f"{o.name}={getattr(config, o.name)}" for o in OPTIONS if o.name not in NO_MATTER)
    return hashlib.sha256("\0".join((model, adapter, *options)).encode("utf-8", "surrogateescape")).hexdigest()


def opened(cache_path: str, key: str) -> Artefact:
    """The file of this key; one object for all sessions of a process that have it open."""
    path = Path(cache_path) / "models" / key[:32]
    return store.shared(path, lambda: Artefact(path, key))


def composer(artefact: Artefact | None) -> Composer:
    """`compose`, with the texts of an artefact."""
    return compose if artefact is None else partial(compose, kept=artefact.text)


class Artefact:
    """One file. It is read when this is made, and written by `save`. Thread-safe; what other processes have written
    meanwhile is kept.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self._lock, self._changed, self._may_write = threading.Lock(), False, True
        self._used = set[Hashable]()  # pipelines, by this process
        self._content, self._there = self._read()

    # ---- what a session asks it

    def text(self, signature: Hashable, make: Callable[[], str]) -> str:
        """The text that follows from `signature`, which has the same repr in every process."""
        key = hashlib.sha256(repr(signature).encode()).hexdigest()[:32]
        text = self._known(self._content.texts, key)
        if text is None:
            text = make()
            with self._lock:
                self._content.texts[key] = text
                self._changed = True
        return text

    def answer(self, key: str, read: Callable[[bytes], T], make: Callable[[], T], write: Callable[[T], bytes]) -> T:
        """The answer that follows from a key. read: raises ValueError, LookupError, TypeError for what is none. write:
        raises TypeError, ValueError for one that can't be kept.
        """
        content = self._known(self._content.answers, key)
        if content is not None:
            try:
                return read(content)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                self._tell(error)
        value = make()
        try:
            content = write(value)
        except (TypeError, ValueError) as error:
            log.info("what belongs into %s is not kept: %s", self.path, str(error)[:200])
        else:
            with self._lock:
                self._content.answers[key] = content
                self._changed = True
        return value

    def note(self, pipeline: Pipeline) -> Blobs:
        """A plan has this one. Returns what is kept of it."""
        with self._lock:
            self._used.add(pipeline.key)
            if pipeline.key not in self._content.pipelines:
                self._content.pipelines[pipeline.key] = pipeline
                self._changed = True
            return self._blobs(pipeline)

    def _blobs(self, pipeline: Pipeline) -> Blobs:
        return self._content.blobs.setdefault(pipeline.key, Blobs())

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """Those of earlier processes, and of this one."""
        with self._lock:
            return tuple(self._content.pipelines.values())

    def compile(self, gpu: Gpu, checked: str) -> None:
        """Compiles the pipelines, on as many threads as there are cores. The session that needs one reports why it
        fails.

        checked: the option checked_shaders.
        """
        # only here: it loads the GPU's library, which isolation=process keeps out of this process
        from ort_gpu_ep.device.pipelines import compiled, is_checked

        def one(pipeline: Pipeline) -> None:
            if ending() or gpu.lost:
                return
            try:
                safe = is_checked(gpu, checked, pipeline.shader)
                with self._lock:
                    blobs = self._blobs(pipeline)
                compiled(gpu, pipeline.label, pipeline.shader, pipeline.text, pipeline.layout, safe, blobs)
            except (ShaderError, DeviceError) as error:
                log.info("a pipeline that is known from before does not compile: %s", str(error)[:200])

        pipelines = self.pipelines
        if pipelines:
            with (
                suppress(RuntimeError),
                ThreadPoolExecutor(min(len(pipelines), os.cpu_count() or 1), "ort_gpu_ep-ahead") as pool,
            ):
                # RuntimeError: no thread begins any more at exit
                list(pool.map(one, pipelines))

    def _known(self, entries: dict[str, V], key: str) -> V | None:
        """One of them, the most recently used from now on."""
        with self._lock:
            value = entries.pop(key, None)
            if value is not None:
                entries[key] = value
            return value

    # ---- the file

    def save(self) -> None:
        """Writes what is new, beside what other processes have written since this one read the file. Pipelines that
        this process did not use go. Where the cache can't be written, that is said once."""
        with self._lock:
            fresh = [blobs for blobs in self._content.blobs.values() if blobs.changed]
            if not (self._changed or fresh) or not self._may_write:
                return
            self._changed = False
            for blobs in fresh:
                blobs.changed = False
            try:
                self._merge()
                data = _written(self._content, self._used)
                store.write_sealed(self.path, self._seal, data)
                self._there = _identity(self.path)
                if self._there is not None and self._there.nbytes != store.sealed_nbytes(self._seal, data):
                    self._there = None  # another process was as fast
                with suppress(FileNotFoundError):  # somebody clears the cache
                    store.make_room(self.path.parent, MAX_FILES, MAX_NBYTES)
            except OSError as error:
                self._may_write = False
                store.tell_unwritable(self.path.parent, error)

    @property
    def _seal(self) -> str:
        return f"{FORMAT} {self.key}"

    def _merge(self) -> None:
        """What another process has written becomes the least recently used of what is here."""
        if _identity(self.path) == self._there:
            return
        theirs, _ = self._read()
        mine = self._content
        self._used |= theirs.pipelines.keys() - mine.pipelines.keys()
        mine.texts = _behind(theirs.texts, mine.texts)
        mine.answers = _behind(theirs.answers, mine.answers)
        mine.pipelines = _behind(theirs.pipelines, mine.pipelines)
        for key, blobs in theirs.blobs.items():
            own = mine.blobs.setdefault(key, blobs)
            own.kept = own.kept or blobs.kept

    def _read(self) -> tuple[Content, Identity | None]:
        """What the file holds, which counts as used now; nothing where there is none that can be used. And which file
        that is."""
        before = _identity(self.path)
        try:
            content = _parsed(store.read_sealed(self.path, self._seal, MAX_FILE_NBYTES))
        except (FileNotFoundError, NotADirectoryError):
            return Content(), None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            self._tell(error)
            return Content(), None
        with suppress(OSError):  # a cache that can't be written
            os.utime(self.path)
        after = _identity(self.path)
        is_same = before is not None and after is not None and after[:3] == before[:3]
        return content, after if is_same else None

    def _tell(self, error: Exception) -> None:
        log.info("cache file %s is ignored and made anew: %s: %s", self.path, type(error).__name__, str(error)[:200])


def _identity(path: Path) -> Identity | None:
    try:
        return identity(path)
    except (OSError, ValueError):
        return None


def _behind(theirs: Mapping[Any, V], mine: dict[Any, V]) -> dict[Any, V]:
    return {key: value for key, value in theirs.items() if key not in mine} | mine


# ---- the bytes: an index of one line, and what it gives the lengths of


def _written(content: Content, used: set[Hashable]) -> bytes:
    """What is there of the limits, the most recently used."""
    encoded = {text: text.encode() for text in (*content.texts.values(), *(p.text for p in content.pipelines.values()))}
    pipelines = _newest(
        ((p, len(encoded[p.text])) for key, p in content.pipelines.items() if key in used),
        MAX_PIPELINES,
        MAX_TEXTS_NBYTES,
    )
    texts = _newest(((pair, len(encoded[pair[1]])) for pair in content.texts.items()), MAX_TEXTS, MAX_TEXTS_NBYTES)
    answers = _newest(((pair, len(pair[1])) for pair in content.answers.items()), MAX_ANSWERS, MAX_ANSWERS_NBYTES)
    kept = {p.key: dict(content.blobs[p.key].kept) for p in pipelines if p.key in content.blobs}
    sizes = ((pair, sum(map(len, pair[1].values()))) for pair in kept.items())
    blobs = dict(_newest(sizes, MAX_PIPELINES, MAX_BLOBS_NBYTES))
    numbers = {
        text: number
        for number, text in enumerate(dict.fromkeys([*(p.text for p in pipelines), *(t for _, t in texts)]))
    }
    index = {
        "texts": [len(encoded[text]) for text in numbers],
        "keys": {key: numbers[text] for key, text in texts},
        "pipelines": [
            [numbers[p.text], p.shader, p.label, *p.layout, {name: len(b) for name, b in blobs.get(p.key, {}).items()}]
            for p in pipelines
        ],
        "answers": {key: len(answer) for key, answer in answers},
    }
    line = json.dumps(index, separators=(",", ":")).encode()
    pieces = [*(encoded[text] for text in numbers), *(answer for _, answer in answers)]
    return b"".join([line, b"\n", *pieces, *(b for p in pipelines for b in blobs.get(p.key, {}).values())])


def _newest(entries: Iterable[tuple[V, int]], count: int, nbytes: int) -> list[V]:
    """The last of what has these sizes, as many as there is room for, in their order."""
    newest = list[V]()
    for value, size in reversed(list(entries)):
        if len(newest) < count and size <= nbytes:
            nbytes -= size
            newest.append(value)
    return newest[::-1]


def _parsed(data: bytes) -> Content:
    """Raises ValueError, LookupError, TypeError, AttributeError for what `_written` gives nobody."""
    line, _, rest = data.partition(b"\n")
    index = store.parse_json(line)
    lengths, answers = index["texts"], index["answers"]
    rows, keys = index["pipelines"], index["keys"]
    if len(lengths) > MAX_TEXTS + MAX_PIPELINES or len(answers) > MAX_ANSWERS or len(rows) > MAX_PIPELINES:
        raise ValueError(f"got {len(lengths)} texts, {len(answers)} answers, {len(rows)} pipelines: too many")
    blobs = [_lengths_of_blobs(row[-1]) for row in rows]
    parts = _cut(rest, [*lengths, *answers.values(), *(n for each in blobs for n in each.values())])
    texts = [next(parts).decode("utf-8") for _ in lengths]
    pipelines = [_pipeline(texts, *row[:-1]) for row in rows]
    return Content(
        {key: texts[_number(number, len(texts))] for key, number in keys.items()},
        {key: next(parts) for key in answers},
        {p.key: p for p in pipelines},
        {p.key: Blobs({name: next(parts) for name in each}) for p, each in zip(pipelines, blobs, strict=True)},
    )


def _lengths_of_blobs(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MAX_BLOBS:
        raise ValueError(f"got {str(value)[:60]}, expected the lengths of at most {MAX_BLOBS} blobs by name")
    return value


def _cut(rest: bytes, lengths: list[Any]) -> Iterator[bytes]:
    if any(type(length) is not int or length < 0 for length in lengths) or sum(lengths) != len(rest):
        raise ValueError(f"got {len(rest)} B behind the index, expected as many as it says")
    end = 0
    for length in lengths:
        yield rest[end : end + length]
        end += length


def _number(value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"got {str(value)[:60]}, expected the number of one of {count} texts")
    return value


def _pipeline(
    texts: list[str], number: Any, shader: Any, label: Any, written: Any, varies: Any, awaited: Any
) -> Pipeline:
    flags = (
        isinstance(written, list)
        and len(written) <= MAX_BINDINGS
        and all(isinstance(flag, bool) for flag in (*written, varies))
    )
    is_count = type(awaited) is int and 0 <= awaited <= MAX_BINDINGS
    if not (isinstance(shader, str) and isinstance(label, str) and flags and is_count):
        raise ValueError(f"got {str((shader, label, written, varies, awaited))[:100]}, expected a pipeline")
    return Pipeline(shader, texts[_number(number, len(texts))], label, (tuple(written), varies, awaited))
