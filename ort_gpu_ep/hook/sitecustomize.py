"""What Python imports at its start in a process below `ort-gpu-ep exec`: onnxruntime is patched as soon as it is
imported.

It loads nothing of ours or of onnxruntime's by itself, and then runs the sitecustomize.py that it hides.
"""

import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


_turn = threading.RLock()
_ours_loading = 0
_wanted = False


def _patch() -> None:
    """As soon as onnxruntime is loaded and no module of ours is half loaded. Where it can't be patched, that is said,
    and the program has onnxruntime as it is.
    """
    global _wanted
    with _turn:
        if _ours_loading or not _wanted:
            return
        _wanted = False
    try:
        from ort_gpu_ep.session.patching import patch

        patch(say=False)
    except Exception as error:
        print(
            f"ort-gpu-ep: process {os.getpid()} uses onnxruntime without the GPU: {type(error).__name__}: {error}",
            file=sys.stderr,
        )


class Loader:
    """Another loader, which does more when the module is there."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)  # python -m asks for the code, and pkgutil for data

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._theirs.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Raises what the module raises."""
        module.__loader__ = self._theirs
        if module.__spec__ is not None:
            module.__spec__.loader = self._theirs
        self._theirs.exec_module(module)


class OnnxruntimeLoader(Loader):
    """Patches what it has loaded."""

    def exec_module(self, module: ModuleType) -> None:
        """Raises what the module raises."""
        global _wanted
        super().exec_module(module)
        with _turn:
            _wanted = True
        _patch()


class OwnLoader(Loader):
    """Of a module of ours, which may be what loads onnxruntime: then the patch, which needs such modules, waits until
    it is whole."""

    def exec_module(self, module: ModuleType) -> None:
        """Raises what the module raises."""
        global _ours_loading
        with _turn:
            _ours_loading += 1
        try:
            super().exec_module(module)
        finally:
            with _turn:
                _ours_loading -= 1
            _patch()


class Finder:
    """Wraps the loaders of onnxruntime and of our modules, and finds this package where the program's own folders have
    none."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = name.partition(".")[0] == "ort_gpu_ep"
        if not ours and name != "onnxruntime":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None and name == "ort_gpu_ep":
            spec = PathFinder.find_spec(name, [os.path.dirname(os.path.dirname(HERE))])
        if spec is not None and spec.loader is not None:
            wrapped = OwnLoader if ours else OnnxruntimeLoader
            spec.loader = wrapped(spec.loader)  # type: ignore[assignment]  # nothing asks it for more than this
        return spec


def chain() -> None:
    """Runs the sitecustomize.py that Python would have found without this folder. Raises what it raises, as if there
    were no other."""
    others = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder())
    chain()
