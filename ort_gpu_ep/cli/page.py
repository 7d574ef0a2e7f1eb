"""`explain --html`: the graph as one HTML file without network access, to zoom, search and filter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from ort_gpu_ep.plugin.explain import Explanation, why_of
from ort_gpu_ep.scheduler.plan import Dispatch

WIDTH, HEIGHT, GAP_X, GAP_Y = 168, 40, 24, 36
TITLE, ROW = 24, 6 * 192
"""Height of a block's name; width up to which blocks stand side by side."""


def page_of(title: str, explained: Explanation) -> str:
    """The whole page. Names of a model are data in it, never markup."""
    nodes = _nodes(explained)
    data = json.dumps({"nodes": nodes, "titles": _place(nodes), "width": WIDTH, "height": HEIGHT}).replace("<", "\\u003c")
    return (Path(__file__).with_suffix(".html").read_text("utf-8").replace("@TITLE@", escape(title)).replace("@DATA@", data)
            .replace("@SUMMARY@", explained._repr_html_()))


def _nodes(explained: Explanation) -> list[dict[str, Any]]:
    """Every node with its place, what it reads from, and what is known of it."""
    kernels: dict[str, list[str]] = {}
    for plan in explained.plans:
        for dispatch in (step for step in plan.steps if isinstance(step, Dispatch)):
            kernels.setdefault(dispatch.label.rpartition("/")[0], []).append(dispatch.kernel.shader.removesuffix(".wgsl"))
    times: dict[str, float] = {}
    profile: dict[str, Any] = explained.profile.as_dict() if explained.profile is not None else {}
    for timed in profile.get("dispatches", []):
        node = timed["label"].rpartition("/")[0]
        times[node] = times.get(node, 0.0) + timed["us"]
    rows: list[dict[str, Any]] = []
    timed_at: dict[str, str] = {}       # label -> the first of the nodes that share its dispatches, which shows their time
    for report in sorted(explained.reports, key=lambda report: report.nested):      # the model's own graph first
        writer = {name: len(rows) + k for k, node in enumerate(report.nodes) for name in node.writes}
        parts = {part.index: part for part in report.partitions}
        for node in report.nodes:
            label = node.fused_into or node.name
            part, first = parts.get(node.partition), timed_at.setdefault(label, node.name)
            rows.append({
                "name": node.name, "op": node.op, "side": node.device, "why": why_of(node), "graph": report.graph if report.nested else "",
                "from": sorted({writer[name] for name in node.reads if name in writer}), "nbytes": node.nbytes,
                "kernel": ", ".join(dict.fromkeys(kernels.get(label, []))),
                "us": times.get(label) if first == node.name else None, "within": first if first != node.name and label in times else "",
                "partition": "" if part is None else f"{part.index}: {part.nodes} nodes, {part.dispatches} dispatches, "
                                                     f"{part.input_nbytes:,} B in, {part.output_nbytes:,} B out"})
    return rows


def _place(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """x and y of every node: a block for each graph, several small ones side by side. Returns the names of the blocks below the first."""
    titles: list[dict[str, Any]] = []
    left = top = below = 0.0
    for name, members in groupby(range(len(nodes)), key=lambda k: nodes[k]["graph"]):
        block = list(members)
        width, height = _place_block(nodes, block)
        if left and (not titles or left + width > ROW):
            left, top = 0.0, below
        for k in block:
            nodes[k]["x"] += left + width / 2
            nodes[k]["y"] += top + (TITLE if name else 0)
        if name:
            titles.append({"x": left, "y": top + TITLE - 8, "text": name})
        left, below = left + width + 2 * GAP_X, max(below, top + height + TITLE + GAP_Y)
    return titles


def _place_block(nodes: list[dict[str, Any]], block: list[int]) -> tuple[float, float]:
    """Places a graph's nodes around x = 0: by the longest path to a node, and beside what it reads from. Returns width and height."""
    levels: dict[int, list[int]] = {}
    level: dict[int, int] = {}
    for k in block:
        level[k] = 1 + max((level[j] for j in nodes[k]["from"] if j in level), default=-1)
        levels.setdefault(level[k], []).append(k)
    at: dict[int, float] = {}
    for depth, members in sorted(levels.items()):
        members.sort(key=lambda k: _mean(nodes[k], at))
        for place, k in enumerate(members):
            at[k] = place - (len(members) - 1) / 2
            nodes[k]["x"] = at[k] * (WIDTH + GAP_X)
            nodes[k]["y"] = depth * (HEIGHT + GAP_Y)
    return max(map(len, levels.values())) * (WIDTH + GAP_X) - GAP_X, len(levels) * (HEIGHT + GAP_Y) - GAP_Y


def _mean(node: Mapping[str, Any], at: Mapping[int, float]) -> float:
    before = [at[j] for j in node["from"] if j in at]
    return sum(before) / len(before) if before else 0.0
