"""python -m ort_gpu_ep: the command `ort-gpu-ep`."""

from __future__ import annotations

import faulthandler
import sys

PACKAGES = {"typer": "typer rich", "rich": "typer rich", "onnxruntime": "'onnxruntime>=1.26'"}
"""Modules that a plain installation does not bring -> what to install."""


def main() -> None:
    """The command. Exit code 1 and what to install, where a package is missing that it needs.

    Some malformed models make onnxruntime's shape inference abort the process: where it was is then printed.
    """
    faulthandler.enable()
    try:
        from ort_gpu_ep.cli import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = PACKAGES.get(package)
        if extra is None:
            raise
        build = ", or another build of ONNX Runtime" if package == "onnxruntime" else ""
        sys.exit(f"ort-gpu-ep: the package {package} is not installed. Try: pip install {extra}{build}")


if __name__ == "__main__":
    main()
