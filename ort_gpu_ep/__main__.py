"""python -m ort_gpu_ep: the command `ort-gpu-ep`."""

from __future__ import annotations

import faulthandler
import sys

EXTRAS = {"typer": "cli", "rich": "cli", "onnxruntime": "onnxruntime"}
"""Packages that a plain installation does not bring -> the extra that does."""


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
        extra = EXTRAS.get(package)
        if extra is None:
            raise
        build = ", or another build of ONNX Runtime" if extra == "onnxruntime" else ""
        sys.exit(f"ort-gpu-ep: the package {package} is not installed. Try: pip install 'ort-gpu-ep[{extra}]'{build}")


if __name__ == "__main__":
    main()
