"""Artefacts as their files are, read and written without the code that is tested: a line with format, key and hash, a
line with an index, and the texts and answers that it gives the lengths of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ort_gpu_ep.config import Config
from ort_gpu_ep.runtime.artefact import Artefact, key_of

CONFIG = Config(placement="gpu")


def opened_anew(cache: Path, adapter: str = "an adapter", model: str = "a model") -> Artefact:
    """As another process opens it."""
    key = key_of(model, adapter, CONFIG)
    return Artefact(cache / "models" / key[:32], key)


def only_file(cache: Path) -> Path:
    (found,) = (cache / "models").iterdir()
    return found


def read(path: Path) -> tuple[dict[str, Any], list[bytes], list[bytes]]:
    """The index, the texts, the answers."""
    index, texts, answers, _ = read_all(path)
    return index, texts, answers


def read_all(path: Path) -> tuple[dict[str, Any], list[bytes], list[bytes], list[bytes]]:
    """The same, and the blobs of pipelines."""
    _, line, rest = path.read_bytes().split(b"\n", 2)
    index = json.loads(line)
    parts = list[bytes]()
    blobs = [nbytes for row in index["pipelines"] for nbytes in row[-1].values()]
    for nbytes in (*index["texts"], *index["answers"].values(), *blobs):
        parts.append(rest[:nbytes])
        rest = rest[nbytes:]
    assert rest == b""
    texts, answers = len(index["texts"]), len(index["texts"]) + len(index["answers"])
    return index, parts[:texts], parts[texts:answers], parts[answers:]


def seal(path: Path, content: bytes) -> None:
    """The file with this content, as if a process had written it."""
    head = path.read_bytes().split(b"\n", 1)[0].rpartition(b" ")[0]
    path.write_bytes(head + b" " + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def change(path: Path, index: Callable[[dict[str, Any]], Any]) -> None:
    """Replaces the index, with the right seal."""
    line, _, blobs = path.read_bytes().split(b"\n", 1)[1].partition(b"\n")
    changed = json.dumps(index(json.loads(line))).encode()
    assert json.loads(changed) != json.loads(line), "the change finds what it changes"
    seal(path, changed + b"\n" + blobs)


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(answer) for answer in read(path)[2]]


def change_answer(path: Path, answer: object) -> None:
    """Replaces the only answer, with the right seal."""
    index, texts, (_,) = read(path)
    data = json.dumps(answer).encode()
    (key,) = index["answers"]
    index["answers"] = {key: len(data)}
    seal(path, json.dumps(index).encode() + b"\n" + b"".join([*texts, data]))
