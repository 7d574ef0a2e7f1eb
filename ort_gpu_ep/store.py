"""Small facts kept on disk as JSON, a file a key: written whole or not at all, and never needed.

What another version wrote, what is cut off or can't be written is said in one line and made anew.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("ort_gpu_ep")


class Store:
    """One folder of the cache. kind: its name. format: of the files; others are ignored."""

    def __init__(self, cache_path: str, kind: str, format: int) -> None:
        self.folder, self.kind, self.format = Path(cache_path) / kind, kind, format

    def read(self, key: str, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """What `parse` makes of the content; None where there is none that can be used."""
        path = self.folder / f"{key}.json"
        try:
            data = json.loads(path.read_text("utf-8"))
            if not isinstance(data, dict) or data.get("format") != self.format:
                raise ValueError(f"its format is {data.get('format') if isinstance(data, dict) else type(data).__name__}, "
                                 f"expected {self.format}")
            return parse(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.info("%s cache %s is ignored and made anew: %s: %s", self.kind, path, type(error).__name__, error)
            return None

    def write(self, key: str, data: dict[str, Any]) -> bool:
        """Stores the content. Where the cache can't be written, that is said and nothing else happens."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump({"format": self.format, **data}, file)
                os.replace(name, self.folder / f"{key}.json")
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            log.info("%s cache %s can't be written: %s; it is made anew in the next process", self.kind, self.folder, error)
            return False
        return True
