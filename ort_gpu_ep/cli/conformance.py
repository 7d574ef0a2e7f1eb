"""ort-gpu-ep conformance: ONNX's node tests on this adapter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track
from rich.table import Table
from rich.text import Text

from ort_gpu_ep.cli import shared
from ort_gpu_ep.device.classes import classes, named
from ort_gpu_ep.files import whole
from ort_gpu_ep.health.conformance import STATUSES, Outcome, cases, run


@shared.reports_errors
def conformance(
    select: Annotated[str, typer.Option("--select", help="Regular expression; only cases whose name matches.")] = "",
    status: Annotated[
        Path | None,
        shared.file_to_write(
            "--status",
            "Write one line a case (name, status, code) to this file; with --select, the other cases' lines stay.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help=f"Use the limits of a class of GPUs: {', '.join(classes())}.",
        ),
    ] = "",
    option: shared.OptionOption = None,
    json: shared.JsonOption = False,
) -> None:
    """Run ONNX's node tests on the GPU without CPU fallback; count PASS, UNSUPPORTED and FAIL. Exit code 1 if one
    fails."""
    from ort_gpu_ep.session.session import InferenceSession

    if device:
        from ort_gpu_ep.device.adapter import hold_to

        hold_to(named(device))
    selected = cases(select)
    options = shared.pairs(option, "--option")
    outcomes = list(
        track(
            run(selected, InferenceSession, options), "running", total=len(selected), console=shared.err, transient=True
        )
    )
    if status is not None:
        with whole(status) as part:
            part.write_text(
                status_text(outcomes, status.read_text("utf-8") if select and status.is_file() else ""), "utf-8"
            )
    if json:
        shared.print_json({"outcomes": [o.as_dict() for o in outcomes]})
    else:
        _print(outcomes)
    if any(o.status == "FAIL" for o in outcomes):
        raise typer.Exit(1)


def status_text(outcomes: list[Outcome], before: str = "") -> str:
    """One line a case, sorted: a pass that becomes a decline is a visible difference. before: a text whose other lines
    stay."""
    lines = {line.split(" ", 1)[0]: line for line in before.splitlines()}
    lines |= {o.name: f"{o.name} {o.status}{' ' + o.code if o.code else ''}" for o in outcomes}
    return "".join(f"{lines[name]}\n" for name in sorted(lines))


def _print(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.status == "FAIL":
            shared.out.print(Text("FAIL", "red"), f"{outcome.name}: {outcome.reason}")
    counts = Counter(o.status for o in outcomes)
    table = Table(*STATUSES, "cases")
    table.add_row(*(str(counts[s]) for s in STATUSES), str(len(outcomes)))
    shared.out.print(table)
    strict = counts["PASS"] + counts["FOLDED"]
    shared.out.print(
        f"{strict} pass without a node on onnxruntime's CPU provider; in {counts['PASS']} of them a kernel of this "
        f"package ran."
    )
    reasons = Counter((o.code, o.reason) for o in outcomes if o.status == "UNSUPPORTED")
    why = Table("cases", "code", "most frequent reasons")
    for (code, reason), count in reasons.most_common(12):
        why.add_row(str(count), code, reason)
    if reasons:
        shared.out.print(why)
