"""A run on a Ray cluster of two nodes on this machine, both started here: what test_scoring_ray.py runs, and ends.

usage: python ray_run.py MODEL DATA OUT until-killed|with-ends
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from ort_gpu_ep.scoring import parts, score
from ort_gpu_ep.scoring.drive import Slot

NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}

HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
"""For the end of a node to be heard of within seconds."""

BATCH, SHARD_ROWS, COMMITTED = 50, 500, 5
"""The last: parts that are there when the whole is killed."""


def until_killed() -> None:
    """Stops for good when some parts are there, and says so."""
    real, never = parts.commit, threading.Event()

    def commit(folder: Path, *rest: Any) -> None:
        real(folder, *rest)
        if len(list(folder.glob("part-*.parquet"))) == COMMITTED:
            print("committed", flush=True)
            never.wait()

    parts.commit = commit


def with_ends(cluster: Cluster, node: Any) -> None:
    """SIGKILL for the first node's worker, then for the second node; each waits for the other, so that both have
    batches to lose."""
    real, worker_ended, node_ended = Slot._answered, threading.Event(), threading.Event()

    def answered(self: Slot, board: Any, answer: Any) -> None:
        real(self, board, answer)
        is_second = self._start.args[1]["scheduling_strategy"].node_id == node.node_id  # type: ignore[attr-defined]
        if is_second and self.counts.batches == 4:
            worker_ended.wait()
            cluster.remove_node(node, allow_graceful=False)
            node_ended.set()
        elif not is_second and self.counts.batches == 5:
            os.kill(self.pid, signal.SIGKILL)
            worker_ended.set()
        elif not is_second and self.counts.batches == 10:
            node_ended.wait()

    Slot._answered = answered  # type: ignore[method-assign]


def main(model: str, data: str, out: str, how: str) -> None:
    cluster = Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "_system_config": HEALTH}
    )
    node = cluster.add_node(**NODE)
    if how == "until-killed":
        until_killed()
    else:
        with_ends(cluster, node)
    report = score(model, data, out, adapters="0", batch=BATCH, shard_rows=SHARD_ROWS, key="id", ray=cluster.address)
    assert not ray.is_initialized()
    print(json.dumps(report.as_dict()), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
