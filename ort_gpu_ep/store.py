"""Small JSON files in the cache folder: read with doubts, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

log = logging.getLogger("ort_gpu_ep")

T = TypeVar("T")


def read(path: Path, format: int, parse: Callable[[dict[str, Any]], T]) -> T | None:
    """What `parse` makes of the file; None where there is none, or none that can be used, which the log says."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != format:
            raise ValueError(f"format {data['format']}, expected {format}")
        return parse(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.info("cache file %s is ignored and made anew: %s: %s", path, type(error).__name__, error)
        return None


def write(path: Path, format: int, data: Mapping[str, object]) -> bool:
    """Stores data. False where the cache can't be written: that is said, and nothing else happens."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"format": format, **data}, file)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        log.info("cache folder %s can't be written: %s; what it would hold is found out again in the next process", path.parent, error)
        return False
    return True
