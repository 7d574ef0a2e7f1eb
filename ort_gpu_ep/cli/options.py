"""ort-gpu-ep options: the table of options."""

from __future__ import annotations

from rich.markup import escape
from rich.padding import Padding

from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import OPTIONS


def options(json: shared.JsonOption = False) -> None:
    """List the provider options and the environment variables that set them."""
    if json:
        shared.print_json({"options": [
            {"name": o.name, "variable": o.variable, "default": o.default, "choices": list(o.choices), "prefix": o.prefix, "doc": o.doc}
            for o in OPTIONS]})
        return
    for option in OPTIONS:
        default = f"={option.default}" if option.default else ""
        shared.out.print(f"[bold]{option.name}[/bold]{escape(default)}  [dim]{option.variable}[/dim]", highlight=False)
        shared.out.print(Padding(escape(option.doc), (0, 0, 0, 4)), highlight=False)
