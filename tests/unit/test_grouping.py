"""Groups: convex, few, and as large as that allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.partitioner.grouping import boundary, convex_groups


@st.composite
def dags(draw: st.DrawFn) -> tuple[list[Node], set[str]]:
    """Nodes in topological order, and the names of the taken ones."""
    nodes, values = [], ["x", "w"]
    for i in range(draw(st.integers(1, 14))):
        reads = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        nodes.append(Node("Any", tuple(reads), (f"v{i}",), f"n{i}", id=i))
        values.append(f"v{i}")
    return nodes, draw(st.sets(st.sampled_from([n.name for n in nodes])))


def groups_of(nodes: list[Node], taken: set[str]) -> list[list[str]]:
    return [[n.name for n in g] for g in convex_groups(nodes, lambda n: n.name in taken)]


def chain(*names: str) -> list[Node]:
    """Each node reads the one before it."""
    return [Node("Any", (names[i - 1] if i else "x",), (n,), n, id=i) for i, n in enumerate(names)]


@given(dags())
def test_groups_hold_the_taken_nodes_once(dag: tuple[list[Node], set[str]]) -> None:
    nodes, taken = dag
    found = [name for group in groups_of(nodes, taken) for name in group]
    assert sorted(found) == sorted(taken)


@given(dags())
def test_no_path_leaves_a_group_and_comes_back(dag: tuple[list[Node], set[str]]) -> None:
    nodes, taken = dag
    for group in groups_of(nodes, taken):
        left: set[str] = set()  # nodes outside the group that depend on it
        tainted: dict[str, str] = {}
        for node in nodes:
            sources = {tainted[r] for r in node.reads if r in tainted}
            if node.name in group:
                assert not sources & left, f"{node.name} is reached again from {group}"
                tainted[node.writes[0]] = node.name
            elif sources:
                left.add(node.name)
                tainted[node.writes[0]] = node.name


@given(dags())
def test_groups_can_run_one_after_another(dag: tuple[list[Node], set[str]]) -> None:
    """Also together they make no cycle: with each group as one node there is an order."""
    nodes, taken = dag
    unit = {name: f"group {k}" for k, group in enumerate(groups_of(nodes, taken)) for name in group}
    maker = {n.writes[0]: unit.get(n.name, n.name) for n in nodes}
    needs: dict[str, set[str]] = {}
    for node in nodes:
        own = unit.get(node.name, node.name)
        needs.setdefault(own, set()).update(maker[r] for r in node.reads if r in maker and maker[r] != own)
    while needs:
        ready = [u for u, wanted in needs.items() if not wanted & set(needs)]
        assert ready, f"a cycle among {sorted(needs)}"
        for u in ready:
            del needs[u]


def test_a_chain_is_one_group() -> None:
    assert groups_of(chain("a", "b", "c"), {"a", "b", "c"}) == [["a", "b", "c"]]


def test_what_waits_for_an_untaken_node_at_the_beginning_joins_the_rest() -> None:
    nodes = [
        Node("Any", reads, (name,), name, id=i)
        for i, (reads, name) in enumerate(((("x",), "a"), (("x",), "b"), (("a", "b"), "c")))
    ]
    assert groups_of(nodes, {"b", "c"}) == [["b", "c"]]


def test_an_untaken_node_splits_a_chain() -> None:
    assert groups_of(chain("a", "b", "c"), {"a", "c"}) == [["a"], ["c"]]


def test_what_surrounds_an_untaken_branch_is_split_but_its_siblings_are_not() -> None:
    """a feeds b (taken), c (not), and d needs both: b may go with a, d must wait for c."""
    nodes = [
        Node("Any", ("x",), ("a",), "a"),
        Node("Any", ("a",), ("b",), "b"),
        Node("Any", ("a",), ("c",), "c"),
        Node("Any", ("b", "c"), ("d",), "d"),
    ]
    assert groups_of(nodes, {"a", "b", "d"}) == [["a", "b"], ["d"]]


def test_independent_chains_share_a_group() -> None:
    nodes = [*chain("a", "b"), *[Node("Any", ("z",), ("c",), "c"), Node("Any", ("c",), ("d",), "d")]]
    assert groups_of(nodes, {"a", "b", "c", "d"}) == [["a", "b", "c", "d"]]


def test_a_value_read_by_a_subgraph_counts() -> None:
    nodes = [
        Node("Any", ("x",), ("a",), "a"),
        Node("If", ("c",), ("i",), "i", implicit=("a",), has_subgraph=True),
        Node("Any", ("a", "i"), ("b",), "b"),
    ]
    assert groups_of(nodes, {"a", "b"}) == [["a"], ["b"]]


def test_boundary() -> None:
    nodes = [
        Node("Any", ("x", "w"), ("a",), "a"),
        Node("Any", ("a", "x"), ("b", ""), "b", operands=("o",)),
        Node("If", ("c",), ("i",), "i", implicit=("a",), has_subgraph=True),
        Node("Any", ("b",), ("d",), "d"),
        Node("Any", ("b",), ("e",), "e"),
    ]
    inputs, outputs = boundary([nodes[0], nodes[1], nodes[3]], nodes, ["d"])
    assert inputs == ["x", "w", "o"]
    assert outputs == ["a", "b", "d"]
