"""Convex groups, few and large.

A group is convex if no path leaves it and comes back: only then can it run as one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ort_gpu_ep.ir.graph import Node


def convex_groups(
    nodes: Sequence[Node],
    taken: Callable[[Node], bool],
    breaks: Mapping[int, Sequence[str]] | None = None,
) -> list[list[Node]]:
    """Splits the taken nodes (of a topologically ordered list) into convex groups.

    breaks: by id() of a node, values that it must get from another group, as if they came by way of an untaken node.
    Each value gets a level: even while it has passed through equally many taken and other stretches, odd inside a taken
    stretch. Nodes of one odd level form a group: an edge never lowers the level, and a path from a group through an
    untaken node comes back at a higher one. Levels that are pushed up by nodes which need not wait are lowered as far
    as their inputs allow, so that side branches join the earliest group.
    """
    level_of: dict[str, int] = {}
    groups: dict[int, list[Node]] = {}
    for node in nodes:
        apart = (breaks or {}).get(id(node), ())
        level = max(
            (level_of[name] + (name in apart and level_of[name] % 2) for name in node.reads if name in level_of),
            default=0,
        )
        if (level % 2 == 1) != taken(node):
            level += 1
        for name in node.writes:
            level_of[name] = level
        if taken(node):
            groups.setdefault(level, []).append(node)
    return [groups[level] for level in sorted(groups)]


def boundary(
    group: Sequence[Node], all_nodes: Sequence[Node], graph_outputs: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Values that a group reads from outside (constants too), and those it makes that others or the graph's outputs
    need."""
    inside = {name for node in group for name in node.writes}
    members = {id(node) for node in group}
    read_outside = {name for node in all_nodes if id(node) not in members for name in node.reads}
    inputs = dict.fromkeys(name for node in group for name in node.reads if name not in inside)
    outputs = dict.fromkeys(
        name for node in group for name in node.writes if name in read_outside or name in graph_outputs
    )
    return list(inputs), list(outputs)
