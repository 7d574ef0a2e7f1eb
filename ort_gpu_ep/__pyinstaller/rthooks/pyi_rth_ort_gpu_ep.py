"""Runs before the code of a program that PyInstaller made. Such a program does not read PYTHONPATH, where hook/ is for
the children of a patched process and below `ort-gpu-ep exec`: what sitecustomize.py does there is done here.
"""

import os
import sys


def _patch_if_asked() -> None:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(entry.replace("\\", "/").endswith("ort_gpu_ep/hook") for entry in entries):
        from ort_gpu_ep.hook.sitecustomize import Finder

        sys.meta_path.insert(0, Finder())


_patch_if_asked()
del _patch_if_asked
