"""`explain --node-data`: what model-explorer shows on the nodes of a model that is open in it
(github.com/google-ai-edge/model-explorer).

The form is that of its GraphNodeData, which its page gives to the graph that is shown: a value and a colour for each
node.
"""

from __future__ import annotations

from typing import Any

from ort_gpu_ep.cli.network import Network
from ort_gpu_ep.plugin.explain import Explanation, NodeReport

COLOURS = {"gpu": "#009e73", "host": "#56b4e9", "cpu": "#e69f00"}
"""Those of page.html, which people tell apart who see fewer colours (Okabe and Ito)."""

WORDS = {"gpu": "GPU", "host": "host", "cpu": "CPU"}


def node_data_of(explained: Explanation) -> dict[str, Any]:
    """Where each node runs; of runs that were profiled the microseconds of each kernel, at the node that names it."""
    network = Network(explained)
    if explained.profile is None:
        where = {
            _key(node): {"value": WORDS[node.device], "bgColor": COLOURS[node.device], "textColor": "#111111"}
            for node, _ in network.nodes
        }
        return {
            "name": "ort-gpu-ep: runs on",
            "results": where,
            "showExpandedSummaryOnGroupNode": True,
            "showLabelCountColumnsInChildrenStatsTable": True,
        }
    times = {
        _key(network.nodes[box.nodes[0]][0]): {"value": box.us}
        for box in network.boxes
        if box.us is not None and box.nodes
    }
    return {
        "name": "ort-gpu-ep: microseconds",
        "results": times,
        "gradient": [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": COLOURS["cpu"]}],
    }


def _key(node: NodeReport) -> str:
    """Its name; of a node without one the first value that it writes, which names it as well."""
    nameless = f"{node.op}->"
    return node.name.removeprefix(nameless) if node.name.startswith(nameless) else node.name
