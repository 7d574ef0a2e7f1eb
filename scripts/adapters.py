"""ONNX's node cases and networks on the adapter that there is, and the tables of docs/adapters.md.

    python scripts/adapters.py run [--as CLASS] [--sample] [--record]     exit code 1 if anything is wrong or fails
    python scripts/adapters.py table                                      writes docs/adapters.md from health/tested.json
                                                                          and benchmarks/compilers.json

--as: the adapter is held to a class of GPUs (ort_gpu_ep/device/classes.json). --sample: one case of each set of ops and types.
--record: the outcomes go to health/tested.json. Another Vulkan driver: eval "$(sh scripts/swiftshader.sh)" before.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
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
PAGE = ROOT / "docs" / "adapters.md"
NETWORKS = ("lenet5", "squeezenet1_1", "shufflenet", "mobilenet_v2", "unet", "tcn", "har_lstm", "mlp_784", "encoder", "decoder")
OPTIONS = {"placement": "gpu", "strict": "1", "health": "off"}
GROUPS = {"PASS": "pass", "FOLDED": "pass", "UNSUPPORTED": "declined", "EXCLUDED": "left out"}
OUTCOMES = ("pass", "declined", "left out", "wrong", "failed")
TOLERANCE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("--as", dest="held_to", default="", choices=("", *classes.classes()))
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    if asked.action == "table":
        PAGE.write_text(page(tested.shipped()), "utf-8")
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
    sys.exit(1 if cases["wrong"] or cases["failed"] or any(not each.startswith("pass") for each in networks.values()) else 0)


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
        except Exception as error:      # whatever a driver does to one network, the next one is looked at, and the exit code says so
            results[name] = f"failed: {type(error).__name__}: {str(error)[:300]}"
        print(f"{name}: {results[name]}", flush=True)
    return results


def compared(name: str) -> str:
    data = models.build(name)
    model, feeds = data.SerializeToString(), make_inputs(model_inputs(data))
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    session = InferenceSession(model, provider_options=OPTIONS)
    errors = [float(np.abs(a.astype("d") - b.astype("d")).max() / max(np.abs(b).max(), 1e-6)) if b.size else 0.0
              for a, b in zip(session.run(None, feeds), theirs, strict=True)]
    left = sorted({node.op for report in session.explain().reports for node in report.nodes if node.device == "cpu"})
    if left or not session.explain().count("gpu"):
        return f"failed: left to the CPU: {', '.join(left) or 'everything'}"
    return f"{'pass' if max(errors) <= TOLERANCE else 'wrong'} {max(errors):.0e}"


HEAD = """# Adapters

On what this package was tested, from `ort_gpu_ep/health/tested.json`: `python scripts/adapters.py table` writes this page. Few GPUs
have been tested, so the list also has software drivers and classes of GPUs ([doctor.md](doctor.md#classes-of-gpus)). For GPUs of more
makers the kernels were [compiled by their drivers](#compiled-by-the-drivers-of-other-gpus). **Yours is not here?**
`ort-gpu-ep doctor --report adapter.json` writes the entry of your adapter, which does not identify your machine.
Please open an issue with it.
"""


COMPILED = """
## Compiled by the drivers of other GPUs

Nothing ran here. Mesa's drivers open GPUs that are faked by its drm-shims, and compile kernels as a session on such a GPU chooses and
composes them, for the limits that the driver reports (`python -m benchmarks.compilers`). Spilled: pipelines that keep registers in
memory, which is slow, and the most of one. Slowest: CPU time of one pipeline. A driver of the maker's own may do otherwise.
"""


def page(entries: list[dict[str, Any]]) -> str:
    parts = [HEAD, "## Probes of the doctor\n", *doctor_rows(entries), "\n## ONNX's node cases\n",
             "Declined: with a reason. Left out are cases that onnxruntime itself refuses, or whose expected values can't be compared.\n",
             *case_rows(entries), "\n## Networks\n",
             "The largest difference from ONNX Runtime's CPU provider, as a fraction of the largest output; "
             f"up to {TOLERANCE:.0e} passes.\n", *network_rows(entries)]
    if compiled := compilers.recorded():
        parts += [COMPILED, *compiler_rows(compiled)]
    return "\n".join(parts) + "\n"


def rows(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for line in lines:
        yield "| " + " | ".join(line) + " |"


def named(found: dict[str, Any]) -> str:
    held = f" as {found['as']}" if found["as"] else ""
    return f"{found['adapter']}{held}"


def versions(found: dict[str, Any]) -> tuple[str, ...]:
    return (f"{found['backend']}, {found['driver'] or 'driver unknown'}", found["system"], found["date"],
            f"{found['package']}, {found['onnxruntime']}, {found['wgpu']}")


def doctor_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    found = [e for e in entries if e["what"] == "doctor"]
    yield from rows(("adapter", "backend, driver", "system", "date", "ort-gpu-ep, onnxruntime, wgpu", "probes"), [
        (named(e), *versions(e), ", ".join(f"{n} {status}" for status, n in e["results"].items())) for e in found])


def case_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    found = [e for e in entries if e["what"] == "conformance"]
    yield from rows(("adapter", "backend, driver", "date", *OUTCOMES), [
        (named(e), versions(e)[0], e["date"], *(str(e["results"][name]) for name in OUTCOMES)) for e in found])


def network_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    found = [e for e in entries if e["what"] == "models"]
    yield from rows(("network", *map(named, found)), [(name, *(e["results"].get(name, "") for e in found)) for name in NETWORKS])


def compiler_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    yield from rows((*compilers.COLUMNS, "date"), [
        (*compilers.cells(e), f"{e['date']}, {'all' if e['cases'] is None else e['cases']} cases") for e in entries])


if __name__ == "__main__":
    main()
