"""A model behind HTTP with Ray Serve: requests that come at the same time run as one batch, in an actor that has its
own adapter.

usage: pip install '.[ray]' in the checkout's root; PYTHONPATH=. python examples/serve_with_ray.py
"""

import asyncio
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ray
from ray import serve

from models import build
from ort_gpu_ep.scoring import Predictor

REQUESTS = 32


@serve.deployment(max_ongoing_requests=128)  # more than a batch: Serve's own default are 5 at a time
class Scorer:
    def __init__(self, model: bytes) -> None:
        self.predict = Predictor(model)  # on the GPU that Ray gave this actor; on the CPU where there is none
        self.sizes: list[int] = []

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.05)
    async def scored(self, rows: list[list[float]]) -> list[dict]:
        self.sizes.append(len(rows))
        # the next batch is collected meanwhile
        table = await asyncio.to_thread(self.predict, {"x": np.array(rows, np.float32)})
        return table.to_pylist()

    async def __call__(self, request) -> dict:  # its type would be a name of Starlette's
        return await self.scored(await request.json())

    def batches(self) -> list[int]:
        return self.sizes


def post(row: list[float]) -> dict:
    request = urllib.request.Request(
        "http://127.0.0.1:8000/", json.dumps(row).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


ray.init(address="local", include_dashboard=False, log_to_driver=False)
needs = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
handle = serve.run(Scorer.options(ray_actor_options=needs).bind(build("mlp_16", batch="n").SerializeToString()))
rows = np.random.default_rng(0).standard_normal((REQUESTS, 16)).tolist()
with ThreadPoolExecutor(REQUESTS) as pool:
    answers = list(pool.map(post, rows))
print(f"{len(answers)} requests in batches of {handle.batches.remote().result()}; the first: {answers[0]}")
serve.shutdown()
ray.shutdown()
