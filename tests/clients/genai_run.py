"""Tokens by onnxruntime-genai's own loop, and what crossed meanwhile, as JSON.

usage: python genai_run.py FOLDER NAME    NAME: under which our library is registered, "" for onnxruntime's CPU
"""

from __future__ import annotations

import json
import sys

import onnxruntime_genai as genai

import ort_gpu_ep
from ort_gpu_ep.plugin.compute import Partition
from ort_gpu_ep.plugin.state import COPIES

folder, name = sys.argv[1:]
if name:
    genai.register_execution_provider_library(name, ort_gpu_ep.get_library_path())
model = genai.Model(folder)
prompt = genai.Tokenizer(model).encode("Once upon a time there was")
executed = [0]
compute = Partition.compute


def counted(self: Partition, state: int, context: int) -> None:
    """Runs that come from onnxruntime's executor."""
    executed[0] += 1
    compute(self, state, context)


Partition.compute = counted  # type: ignore[method-assign]
found = {"device": model.device_type, "tokens": [], "copies": []}
for _ in range(2):
    settings = genai.GeneratorParams(model)
    settings.set_search_options(max_length=80)
    generator = genai.Generator(model, settings)
    generator.append_tokens(prompt)
    generator.generate_next_token()
    tokens, before, executed[0] = [int(generator.get_next_tokens()[0])], COPIES.as_dict(), 0
    for _ in range(30):
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    found["tokens"].append(tokens)
    crossed = {kind: count - before[kind] for kind, count in COPIES.as_dict().items()}
    found["copies"].append({**crossed, "executed": executed[0]})


def talked() -> list[int]:
    """A conversation: an answer, to which more is appended. genai does not feed the answer's last token before what
    comes then."""
    settings = genai.GeneratorParams(model)
    settings.set_search_options(max_length=80)
    generator = genai.Generator(model, settings)
    for text in ("Once upon a time", " and then", " so"):
        generator.append_tokens(genai.Tokenizer(model).encode(text))
        for _ in range(6):
            generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


found["talk"] = talked()  # behind others, whose memory it gets
print(json.dumps(found))
generator = settings = model = None  # before the interpreter ends, to which `counted` would keep them
