"""ort-gpu-ep options: the table of options."""

from __future__ import annotations

from rich.table import Table

from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import OPTIONS


def options() -> None:
    """List the provider options and the environment variables that set them."""
    table = Table("option", "environment variable", "default", "values", "what it does")
    for option in OPTIONS:
        table.add_row(option.name, option.variable, option.default, " ".join(option.choices), option.doc)
    shared.out.print(table)
