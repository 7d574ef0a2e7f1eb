"""The commands' consoles are made here: rich keeps a width that COLUMNS gives at that time, and tests ask for several widths."""

import os

os.environ.pop("COLUMNS", None)

import ort_gpu_ep.cli.shared  # noqa: F401
