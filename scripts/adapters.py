"""ONNX's node cases and networks on the adapter that there is, and the tables of docs/adapters.md.

    python scripts/adapters.py run [--as CLASS] [--sample] [--record]     exit code 1 if anything is wrong or fails
    python scripts/adapters.py table                                      writes docs/adapters.md from health/tested.json,
                                                                          benchmarks/compilers.json and
                                                                            benchmarks/reported.json,
                                                                          and what README.md and which-provider.md say
                                                                            of makers
    python scripts/adapters.py add FILE ...                               users' reports to benchmarks/reported.json, then `table`:
                                                                          what `doctor --report` wrote or `bench
                                                                            --share` printed

--as: the adapter is held to a class of GPUs (ort_gpu_ep/device/classes.json). --sample: one case of each set of ops and
types. --record: the outcomes go to health/tested.json. Another Vulkan driver: eval "$(sh scripts/swiftshader.sh)"
before.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402

import models  # noqa: E402
from benchmarks import compilers  # noqa: E402
from models.inputs import make_inputs, model_inputs  # noqa: E402
from ort_gpu_ep.device import adapter, classes  # noqa: E402
from ort_gpu_ep.health import conformance, tested  # noqa: E402
from ort_gpu_ep.session.session import InferenceSession  # noqa: E402

TABLE = ROOT / "ort_gpu_ep" / "health" / "tested.json"
REPORTED = ROOT / "benchmarks" / "reported.json"
"""Entries as those of health/tested.json, of users' machines. `what` is `bench`, too: its results are the lines of the
table."""
PAGE = ROOT / "docs" / "adapters.md"
README, SUPPORT = ROOT / "README.md", ROOT / "docs" / "which-provider.md"
BEGIN, END = "<!--makers-->", "<!--/makers-->"
"""Between them is what this writes: a sentence in README.md, the table by maker in which-provider.md."""
NETWORKS = (
    "lenet5",
    "squeezenet1_1",
    "shufflenet",
    "mobilenet_v2",
    "unet",
    "tcn",
    "har_lstm",
    "mlp_784",
    "encoder",
    "decoder",
)
OPTIONS = {"placement": "gpu", "strict": "1", "health": "off"}
GROUPS = {"PASS": "pass", "FOLDED": "pass", "UNSUPPORTED": "declined", "EXCLUDED": "left out"}
OUTCOMES = ("pass", "declined", "left out", "wrong", "failed")
TOLERANCE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("action", choices=("run", "table", "add"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--as", dest="held_to", default="", choices=("", *classes.classes()))
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    if asked.action == "add":
        for file in asked.files:
            for each in reports_in(file):
                tested.append(REPORTED, each)
    if asked.action != "run":
        write_tables()
        return
    onnxruntime.set_default_logger_severity(4)
    if asked.held_to:
        adapter.hold_to(classes.named(asked.held_to))
    info = adapter.choose("")[0]
    print(f"{info.name}, {info.backend}, driver {info.driver or 'unknown'}", flush=True)
    cases, networks = run_cases(asked.sample), run_networks()
    if asked.record:
        for what, results in (("conformance", cases), ("models", networks)):
            tested.append(TABLE, tested.entry(info, what, results, asked.held_to))
    sys.exit(
        1 if cases["wrong"] or cases["failed"] or any(not each.startswith("pass") for each in networks.values()) else 0
    )


def run_cases(sample: bool) -> dict[str, int]:
    """How many of ONNX's node cases have each outcome."""
    selected, counts = conformance.cases(), Counter[str]()
    if sample:
        first: dict[object, Any] = {}
        for case in selected:
            kinds = tuple(given.type.tensor_type.elem_type for given in case.model.graph.input)
            first.setdefault((frozenset(node.op_type for node in case.model.graph.node), kinds), case)
        selected = list(first.values())
    for found in conformance.run(selected, InferenceSession, OPTIONS):
        group = GROUPS.get(found.status) or ("wrong" if found.reason.startswith(("got ", "wrong ")) else "failed")
        counts[group] += 1
        if group in ("wrong", "failed"):
            print(f"{group}: {found.name}: {found.reason}", flush=True)
    print(", ".join(f"{counts[name]} {name}" for name in OUTCOMES), flush=True)
    return {name: counts[name] for name in OUTCOMES}


def run_networks() -> dict[str, str]:
    """Each network against onnxruntime's CPU provider: `pass` and the largest error, of the largest output."""
    results = {}
    for name in NETWORKS:
        try:
            results[name] = compared(name)
        except (
            Exception
        ) as error:  # whatever a driver does to one network, the next one is looked at, and the exit code says so
            results[name] = f"failed: {type(error).__name__}: {str(error)[:300]}"
        print(f"{name}: {results[name]}", flush=True)
    return results


def compared(name: str) -> str:
    data = models.build(name)
    model, feeds = data.SerializeToString(), make_inputs(model_inputs(data))
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    session = InferenceSession(model, provider_options=OPTIONS)
    errors = [
        float(np.abs(a.astype("d") - b.astype("d")).max() / max(np.abs(b).max(), 1e-6)) if b.size else 0.0
        for a, b in zip(session.run(None, feeds), theirs, strict=True)
    ]
    left = sorted({node.op for report in session.explain().reports for node in report.nodes if node.device == "cpu"})
    if left or not session.explain().count("gpu"):
        return f"failed: left to the CPU: {', '.join(left) or 'everything'}"
    return f"{'pass' if max(errors) <= TOLERANCE else 'wrong'} {max(errors):.0e}"


HEAD = """# Adapters

On what this package was tested, from `ort_gpu_ep/health/tested.json`: `python scripts/adapters.py table` writes this page. Few GPUs
have been tested, so the list also has software drivers and classes of GPUs ([doctor.md](doctor.md#classes-of-gpus)). For GPUs of more
makers the kernels were [compiled by their drivers](#compiled-by-the-drivers-of-other-gpus). **Yours is not here?**
`ort-gpu-ep doctor --report adapter.json` writes the entry of your adapter, which does not identify your machine.
Please open an issue with it; what `ort-gpu-ep bench MODEL --share` prints is welcome, too. `python scripts/adapters.py add FILE`
adds both.
"""


COMPILED = """
## Compiled by the drivers of other GPUs

Nothing ran here. Mesa's drivers open GPUs that are faked by its drm-shims, and compile kernels as a session on such a GPU chooses and
composes them, for the limits that the driver reports (`python -m benchmarks.compilers`). Spilled: pipelines that keep registers in
memory, which is slow, and the most of one. Slowest: CPU time of one pipeline; by qemu, an emulator of 64-bit ARM, it is some 20 times
as long as without. A driver of the maker's own may do otherwise.
"""

REPORTS = """
## Reported by users

Nobody here has seen these machines: `ort-gpu-ep doctor --report` and `ort-gpu-ep bench --share` wrote it there.
"""


def page(entries: list[dict[str, Any]]) -> str:
    parts = [
        HEAD,
        "## By maker\n",
        *rows(MAKER_COLUMNS, by_maker()),
        "\n## Probes of the doctor\n",
        *doctor_rows(entries),
        "\n## ONNX's node cases\n",
        "Declined: with a reason. Left out are cases that onnxruntime itself refuses, or whose expected values can't "
        "be compared.\n",
        *case_rows(entries),
        "\n## Networks\n",
        "The largest difference from ONNX Runtime's CPU provider, as a fraction of the largest output; "
        f"up to {TOLERANCE:.0e} passes.\n",
        *network_rows(entries),
    ]
    if compiled := compilers.recorded():
        parts += [COMPILED, *compiler_rows(compiled)]
    if reports := reported():
        parts += [
            REPORTS,
            *rows(
                ("adapter", "backend, driver", "system", "date", "what", "results"),
                [
                    (
                        e["adapter"],
                        versions(e)[0],
                        e["system"],
                        e["date"],
                        e["what"],
                        "; ".join(f"{name}: {value}" for name, value in e["results"].items()),
                    )
                    for e in reports
                ],
            ),
        ]
    return "\n".join(parts) + "\n"


MAKERS = {
    "AMD": r"\bAMD|\bRADV|Radeon",
    "Intel": r"Intel",
    "NVIDIA": r"NVIDIA|\bNVK\b",
    "Apple": r"Apple",
    "Qualcomm": r"Adreno|Qualcomm",
    "Arm": r"\bMali\b|Immortalis",
    "Broadcom (Raspberry Pi)": r"\bV3D\b|Raspberry",
    "Software": r"llvmpipe|SwiftShader|WARP|Basic Render",
}
"""Maker -> what names its adapters."""
MAKER_COLUMNS, NOT_KNOWN = (
    ("maker", "tested here", "compiled by its real driver, not run", "reported by a user"),
    "not known",
)


def maker_of(adapter: str) -> str:
    return next((maker for maker, pattern in MAKERS.items() if re.search(pattern, adapter)), "Other")


def reported() -> list[dict[str, Any]]:
    return list(json.loads(REPORTED.read_text("utf-8"))) if REPORTED.exists() else []


SHARED = re.compile(
    r"^\*\*(?P<model>.+?)\*\* on (?P<adapter>.+?)(?: \((?P<driver>.+)\))?\n\n(?P<table>(?:\|.*\n)+)\nplacement=\w+: .*; "
    r"ort-gpu-ep (?P<package>\S+), onnxruntime (?P<onnxruntime>\S+), Python (?P<python>\d+\.\d+)\S*, (?P<system>.+)$",
    re.MULTILINE,
)
"""What cli/share.py writes."""


def reports_in(file: Path) -> list[dict[str, Any]]:
    """Entries of a report, dated by its file where it has no date itself. Exits where there is none in it."""
    text = file.read_text("utf-8")
    if text.lstrip().startswith("["):
        found = json.loads(text)
        wrong = [each for each in found if {*each} != {*tested.shipped()[0]} or each["what"] not in tested.WHAT]
        if wrong:
            sys.exit(
                f"{file}: {str(wrong[0])[:200]}: expected entries that `ort-gpu-ep doctor --report` wrote, of "
                f"this version"
            )
        return list(found)
    shares = [_shared(match.groupdict(), date.fromtimestamp(file.stat().st_mtime)) for match in SHARED.finditer(text)]
    if not shares:
        sys.exit(
            f"{file}: expected what `ort-gpu-ep doctor --report` wrote, or a text with what `ort-gpu-ep bench "
            f"--share` printed"
        )
    return shares


def _shared(match: dict[str, str], day: date) -> dict[str, Any]:
    plain = {name: re.sub(r"\\(.)", r"\1", value or "") for name, value in match.items()}
    columns, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in plain["table"].splitlines()]
    results = {
        f"{plain['model']}, {line[0]}": ", ".join(f"{c} {v}" for c, v in zip(columns[1:], line[1:], strict=True))
        for line in lines
    }
    return {name: plain.get(name, "") for name in tested.shipped()[0]} | {
        "what": "bench",
        "date": day.isoformat(),
        "results": results,
    }


def by_maker() -> list[tuple[str, ...]]:
    """A line for each maker: what was tested, compiled by its real driver, and reported, by adapter; `not known` where
    nothing was."""
    ran = [e for e in tested.shipped() if not e["as"]]
    compiled = [(maker_of(f"{e['gpu']} {e['adapter']}"), e) for e in compilers.recorded()]
    lines = []
    for maker in (*MAKERS, "Other"):
        told = (
            _names([(e["adapter"], e["driver"], e["date"]) for e in ran if maker_of(e["adapter"]) == maker]),
            _counted([e for own, e in compiled if own == maker]),
            _names([(e["adapter"], e["driver"], e["date"]) for e in reported() if maker_of(e["adapter"]) == maker]),
        )
        if any(told) or maker != "Other":
            lines.append((maker, *(each or NOT_KNOWN for each in told)))
    return lines


def _names(adapters: list[tuple[str, str, str]]) -> str:
    newest = {name: (driver, day) for name, driver, day in sorted(adapters, key=lambda each: each[2])}
    return "; ".join(f"{name}, {driver or 'driver unknown'}, {day}" for name, (driver, day) in sorted(newest.items()))


def _counted(entries: list[dict[str, Any]]) -> str:
    """GPUs by driver: how many, its version and the last date."""
    drivers = sorted({e["place"].split("/")[0] for e in entries})
    parts = []
    for driver in drivers:
        own = [e for e in entries if e["place"].split("/")[0] == driver]
        last = max(own, key=lambda e: str(e["date"]))
        parts.append(
            f"{driver} ({last['driver'].split('-')[0]}) for {len(own)} GPU{'s' if len(own) > 1 else ''}, {last['date']}"
        )
    return "; ".join(parts)


def sentence() -> str:
    lines = by_maker()
    columns = [[maker for maker, *told in lines if told[k] != NOT_KNOWN] for k in range(3)]
    nothing = [maker for maker, *told in lines if {*told} == {NOT_KNOWN}]
    names = ("tested", "compiled, not run", "reported by users", NOT_KNOWN)
    told = (f"{name}: {', '.join(makers) or 'none'}" for name, makers in zip(names, (*columns, nothing), strict=True))
    return f"GPUs {'; '.join(told)}."


def with_makers(text: str, what: str) -> str:
    """A document with what it says of makers as it is now. Raises ValueError where it has no place for it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"expected the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{what}\n{END}{after}"


def of_makers() -> tuple[tuple[Path, str], ...]:
    return (README, sentence()), (SUPPORT, "\n" + "\n".join(rows(MAKER_COLUMNS, by_maker())) + "\n")


def write_tables() -> None:
    PAGE.write_text(page(tested.shipped()), "utf-8")
    for path, what in of_makers():
        path.write_text(with_makers(path.read_text("utf-8"), what), "utf-8")


def rows(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for line in lines:
        yield "| " + " | ".join(line) + " |"


def named(found: dict[str, Any]) -> str:
    held = f" as {found['as']}" if found["as"] else ""
    return f"{found['adapter']}{held}"


def versions(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{found['backend']}, {found['driver'] or 'driver unknown'}",
        found["system"],
        found["date"],
        f"{found['package']}, {found['onnxruntime']}, {found['wgpu']}",
    )


def doctor_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    found = [e for e in entries if e["what"] == "doctor"]
    yield from rows(
        ("adapter", "backend, driver", "system", "date", "ort-gpu-ep, onnxruntime, wgpu", "probes"),
        [(named(e), *versions(e), ", ".join(f"{n} {status}" for status, n in e["results"].items())) for e in found],
    )


def case_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    found = [e for e in entries if e["what"] == "conformance"]
    yield from rows(
        ("adapter", "backend, driver", "date", *OUTCOMES),
        [(named(e), versions(e)[0], e["date"], *(str(e["results"][name]) for name in OUTCOMES)) for e in found],
    )


def network_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    found = [e for e in entries if e["what"] == "models"]
    yield from rows(
        ("network", *map(named, found)), [(name, *(e["results"].get(name, "") for e in found)) for name in NETWORKS]
    )


def compiler_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    yield from rows(
        (*compilers.COLUMNS, "date"),
        [(*compilers.cells(e), f"{e['date']}, {'all' if e['cases'] is None else e['cases']} cases") for e in entries],
    )


if __name__ == "__main__":
    main()
