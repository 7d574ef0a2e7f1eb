"""Plans and partitionings on disk: a process that opens a known model reads them, and runs none of what makes them.

<cache>/plans/<key>.json has a seal (store.py) and one answer. The key is a hash of all that the answer follows from:
the graph with its small constants and what is known of the large ones, the types, the adapter's limits and its driver,
the options, and this package's code with the libraries that it asks. So a stale file is never asked for. Weights are in
none. A file that is not as it should be is made anew.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ort_gpu_ep import store
from ort_gpu_ep.files import identity
from ort_gpu_ep.ir.digest import digest, graph_digest
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels import questions, target
from ort_gpu_ep.kernels.host import MAX_CONSTANT_NBYTES
from ort_gpu_ep.kernels.registry import Limits, UnknownValueError
from ort_gpu_ep.kernels.target import HALVED
from ort_gpu_ep.scheduler.kept import from_data, to_data
from ort_gpu_ep.scheduler.template import Template

log = logging.getLogger("ort_gpu_ep")

FORMAT = "ort_gpu_ep plan 1"

MAX_FILE_NBYTES = 16 << 20
"""Of a file that is read or written: ResNet-50's plan has 0.4 MB."""

MAX_FILES, MAX_NBYTES = 256, 64 << 20
"""Of the folder. A model that one partition runs has two files."""

LOOK_EVERY = 16
"""Plans that are written between two looks at how large the folder is."""

T = TypeVar("T")


class KnownPlans:
    """The folder below a cache path. Thread-safe, also with other processes. code: adapter, driver, and this package's
    code, as a text."""

    def __init__(self, cache_path: str, code: str) -> None:
        self.folder, self._code = Path(cache_path) / "plans", code
        self._kept = store.SealedFolder(
            self.folder, ".json", FORMAT, MAX_FILE_NBYTES, (MAX_FILES, MAX_NBYTES), LOOK_EVERY
        )

    def template(
        self,
        graph: Graph,
        types: Sequence[TensorType],
        limits: Limits,
        values: Mapping[int, Array],
        about: Sequence[object],
        make: Callable[[], Template],
    ) -> Template:
        """What `make` gives for these. about: what else it follows from. Raises what `make` raises; UnknownValueError
        is kept, too."""

        def read(data: Mapping[str, Any]) -> Template | UnknownValueError:
            if [*data] == ["unknown"] and type(data["unknown"]) is str and data["unknown"] in graph.values:
                return UnknownValueError(data["unknown"])
            return from_data(data, types, limits, values)

        def written(answer: Template | UnknownValueError) -> dict[str, Any]:
            return to_data(answer) if isinstance(answer, Template) else {"unknown": answer.operand}

        def made() -> Template | UnknownValueError:
            try:
                return make()
            except UnknownValueError as error:
                return error

        def asked() -> str:
            content = graph_digest(graph, MAX_CONSTANT_NBYTES, limits.precision in HALVED)
            return digest("template", content, tuple(types), *said(limits), dict(values), *about)

        template = self.get(asked, read, written, made)
        if isinstance(template, UnknownValueError):
            raise template
        return template

    def get(
        self,
        asked: Callable[[], str],
        read: Callable[[Mapping[str, Any]], T],
        write: Callable[[T], dict[str, Any]],
        make: Callable[[], T],
    ) -> T:
        """The answer to what `asked` names, read from disk or made. read: raises ValueError, LookupError, TypeError for
        what is no answer. write: raises TypeError for one that can't be kept.
        """
        if target.FORCING or questions.are_apart():  # what is answered now is answered otherwise
            return make()
        try:
            key = digest(self._code, libraries(), asked())
        except TypeError as error:
            log.info("a plan is not kept: %s", error)
            return make()
        return self._kept.get(
            key,
            lambda content: read(store.parse_json(content)),
            make,
            lambda found: json.dumps(write(found), allow_nan=False, separators=(",", ":")).encode(),
        )


def said(limits: Limits) -> tuple[object, ...]:
    """The limits as what `digest` takes."""
    plain = {f.name: getattr(limits, f.name) for f in fields(limits) if f.name != "tuned"}
    return plain, dict(limits.tuned.items())


@cache
def libraries() -> tuple[object, ...]:
    """What tells the versions of the libraries that rows ask, without loading any: the operators' schemas are
    theirs."""
    versions = list[object]()
    for name in ("onnx", "onnxruntime", "numpy", "ml_dtypes"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and os.path.isfile(spec.origin):
            beside = os.listdir(os.path.dirname(os.path.dirname(spec.origin)))
            versions.append(
                (spec.origin, identity(spec.origin).kept(), sorted(n for n in beside if n.startswith(f"{name}-")))
            )
    return tuple(versions)


@cache
def known_plans(cache_path: str, code: str) -> KnownPlans:
    """The folder of this process."""
    return KnownPlans(cache_path, code)
