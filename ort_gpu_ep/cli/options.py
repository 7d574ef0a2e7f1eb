"""ort-gpu-ep options: the table of options."""

from __future__ import annotations

from rich.padding import Padding
from rich.text import Text

from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import OPTIONS


def options(json: shared.JsonOption = False) -> None:
    """List the options, their defaults and their environment variables."""
    if json:
        shared.print_json(
            {
                "options": [
                    {
                        "name": o.name,
                        "variable": o.variable,
                        "default": o.default,
                        "choices": list(o.choices),
                        "prefix": o.prefix,
                        "doc": o.doc,
                    }
                    for o in OPTIONS
                ]
            }
        )
        return
    for option in OPTIONS:
        default = f"={option.default}" if option.default else ""
        shared.out.print(Text.assemble((option.name, "bold"), default, "  ", (option.variable, "dim")))
        shared.out.print(Padding(option.doc, (0, 0, 0, 4)))
