"""A load read from a file, for tests (option `load=file:PATH`)."""

from __future__ import annotations

from pathlib import Path

from ort_gpu_ep.load.source import Source, SourceError, clip, read_text


class FileSource(Source):
    """`0.6` says that the GPU is 60 % busy, `0.6 0.25` that the CPU is 25 % busy too; `unknown` is a source without an
    answer. On a software adapter, whose load is the CPU's, one number stands for both.

    The file is read at each sample, so it may be changed while a session runs. Raises SourceError for any other
    content.
    """

    def __init__(self, path: Path, software: bool = False) -> None:
        self.name, self._path, self._software = f"file {path}", path, software
        self.read()

    def read(self) -> float | None:
        return self._values()[0]

    def cpu(self) -> float | None:
        """The CPU's load, where the file tells it."""
        return self._values()[1]

    def _values(self) -> tuple[float | None, float | None]:
        words = read_text(self._path).split()
        try:
            numbers = [None if word == "unknown" else clip(float(word)) for word in words]
            gpu, cpu = [*numbers, None][:2]
        except ValueError as error:
            raise SourceError(
                f"{self._path}: got {' '.join(words)[:40]!r}, expected the GPU's load from 0 to 1, or `unknown`, "
                "and the CPU's after it if wanted"
            ) from error
        return gpu, gpu if self._software and len(numbers) == 1 else cpu
