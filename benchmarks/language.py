"""Milliseconds of a language model's token and tokens a second of its prompt, with caches that stay where they are.

    python -m benchmarks.language [--sides generate,gpu,cpu] [--contexts 512,4096] [--prompt 512] [--tokens 64] [--tiny]
        [--accuracy-level 4] [--dtype float16] [--json FILE]

The model is models/language.py with Llama-3.2-1B's sizes (int4 in blocks of 32, random weights), or small ones. Past and present of a layer
are one buffer. A side runs in a process of its own: `gpu` by IO binding, `generate` by ort_gpu_ep.generate, `cpu` on ONNX Runtime's CPU
provider by IO binding.

Source of the sizes: the Llama 3.2 model card (1B: 16 layers, 2048, 8192, 32 heads, 8 of keys, vocabulary 128256).
"""

from __future__ import annotations

import json as json_module
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.table import Table

from benchmarks import cases, sides
from models.language import language_model
from ort_gpu_ep import Generator, InferenceSession
from ort_gpu_ep.cli import decoding

LARGE: dict[str, Any] = {
    "layers": 16, "width": 2048, "heads": 32, "groups": 8, "hidden": 8192, "vocabulary": 128256, "context": 8192, "packed": True}
TINY: dict[str, Any] = {"layers": 2, "width": 256, "heads": 8, "groups": 2, "hidden": 512, "vocabulary": 1024, "context": 8192}

console = sides.console()


class Decoder:
    """A session of the model, its caches of `rows` tokens on the session's device."""

    def __init__(self, path: str, side: str, rows: int) -> None:
        start = time.perf_counter()
        if side == "cpu":
            self.session: Any = onnxruntime.InferenceSession(path, cases.quiet(), providers=["CPUExecutionProvider"])
        else:
            self.session = InferenceSession(path, cases.quiet(), provider_options={"placement": "gpu", "strict": "1"})
        self.opening_s = time.perf_counter() - start
        device = "cpu" if side == "cpu" else "gpu"
        rng = np.random.default_rng(3)
        shapes = {i.name: (1, i.shape[1], rows, i.shape[3]) for i in self.session.get_inputs()[2:]}
        kind = np.float16 if "float16" in self.session.get_inputs()[2].type else np.float32
        self.caches = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy((0.5 * rng.standard_normal(shape, np.float32)).astype(kind), device)
            for name, shape in shapes.items()}
        self.binding = self.session.io_binding()
        for name, cache in self.caches.items():
            self.binding.bind_ortvalue_input(name, cache)
            self.binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)

    def step(self, tokens: np.ndarray, total: int) -> np.ndarray:
        """The logits of the last token, on the host."""
        self.binding.bind_cpu_input("input_ids", tokens)
        self.binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        self.binding.bind_output("logits", "cpu")
        self.session.run_with_iobinding(self.binding)
        return np.asarray(self.binding.get_outputs()[-1].numpy())[0, -1]


def timed(decoder: Decoder, context: int, count: int) -> list[float]:
    """Milliseconds of tokens behind a context of so many, each the one that the last step found."""
    token, times = 1, []
    for k in range(count):
        start = time.perf_counter()
        token = int(decoder.step(np.array([[token]]), context + k + 1).argmax())
        times.append((time.perf_counter() - start) * 1e3)
    return times


def generated(path: str, contexts: list[int], prompt: int, tokens: int) -> dict[str, Any]:
    """What `generate` takes: of a prompt to its first token, and between the tokens behind it."""
    start = time.perf_counter()
    generator = Generator(path, max_length=max(contexts) + 2 * tokens + 64, sess_options=cases.quiet(), provider_options={"strict": 1})
    found, rng, prompts = {"opening_s": time.perf_counter() - start}, np.random.default_rng(1), []
    for _ in range(6):
        prompts.append(decoding.timed(generator, rng.integers(0, 1000, prompt), 0)[0])
    found |= {"first_prompt_s": prompts[0], "prompt_tokens_s": prompt / float(np.median(prompts[1:]))}
    for context in contexts:
        _, times = decoding.timed(generator, rng.integers(0, 1000, context), 2 * tokens - 1)
        found[f"token_ms_{context}"] = float(np.median(times[tokens // 2:]))
    return found


def measure(path: str, side: str, contexts: list[int], prompt: int, tokens: int) -> dict[str, Any]:
    """What a side takes: in this process."""
    if side == "generate":
        return generated(path, contexts, prompt, tokens)
    decoder = Decoder(path, side, max(contexts) + 2 * tokens + 64)
    rng, prompts = np.random.default_rng(1), []
    for _ in range(6):
        ids = rng.integers(0, 1000, (1, prompt))
        start = time.perf_counter()
        decoder.step(ids, prompt)
        prompts.append(time.perf_counter() - start)
    found = {"opening_s": decoder.opening_s, "first_prompt_s": prompts[0], "prompt_tokens_s": prompt / float(np.median(prompts[1:]))}
    for context in contexts:
        timed(decoder, context, tokens // 2)
        found[f"token_ms_{context}"] = float(np.median(timed(decoder, context, tokens)))
    return found


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table("", *found, title="a language model in int4")
    for key in next(iter(found.values())):
        table.add_row(key, *(f"{row[key]:.3f}" for row in found.values()))
    console.print(table)


def main(
    sides: Annotated[str, typer.Option(help="generate, gpu, cpu")] = "generate,gpu,cpu",
    contexts: Annotated[str, typer.Option(help="Tokens before those that are timed.")] = "512,4096",
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens that are timed behind each context.")] = 64,
    accuracy_level: Annotated[int, typer.Option(help="Of the products; 4 lets prompts be rounded to bytes.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or float16")] = "float32",
    tiny: Annotated[bool, typer.Option("--tiny", help="A small network, to try it.")] = False,
    json: Annotated[Path | None, typer.Option(help="Also write what was found there.")] = None,
    one: Annotated[str, typer.Option(hidden=True, help="A model's path: measure one side in this process and print JSON.")] = "",
) -> None:
    """Measures decoding and prompts."""
    if one:
        print(json_module.dumps(measure(one, sides, [int(c) for c in contexts.split(",")], prompt, tokens)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        sizes = TINY if tiny else LARGE
        path.write_bytes(language_model(**sizes, accuracy=accuracy_level, dtype=dtype).SerializeToString())     # type: ignore[arg-type]
        found = {}
        for side in sides.split(","):
            command = [sys.executable, "-m", "benchmarks.language", "--one", str(path), "--sides", side, "--contexts", contexts,
                       "--prompt", str(prompt), "--tokens", str(tokens)]
            found[side] = json_module.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    show(found)
    if json is not None:
        json.write_text(json_module.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
