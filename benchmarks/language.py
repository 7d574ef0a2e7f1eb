"""Milliseconds of a language model's token and tokens a second of its prompt, with caches that stay where they are.

    python -m benchmarks.language [--size 1b|8b|tiny] [--sides generate,gpu,cpu] [--contexts 512,4096] [--prompt 512]
        [--tokens 64] [--mixture] [--accuracy-level 4] [--dtype float16] [--cache-bits 8] [--rows 4,16]
        [--drafts 3] [--json FILE]

The model is models/language.py with the sizes of Llama-3.2-1B or Llama-3.1-8B (int4 in blocks of 32, random weights in
a file beside model.onnx), gpt-oss-20b's shape (--mixture: 12 GB), or small ones. Past and present of a layer are one
buffer. --cache-bits, --rows (that `generate` has side by side) and --drafts (of a pass) are of side `generate`. A side
runs in a process of its own (language_process.py, which says what the rows are): `generate` by ort_gpu_ep.Generator,
`gpu` by IO binding with logits on the host, `bound` by IO binding of a decoding_session, `cpu` on ONNX Runtime's CPU
provider by IO binding, `genai` by onnxruntime-genai's loop with our provider as its WebGPU provider and graph capture
(caches on the device), `genai_executor` without capture, `genai_own` under our own name (caches on the CPU). replays_N:
of captured graphs, one for each of the tokens behind a context of N.

Source of the sizes: the model cards of Llama 3.2 (1B: 16 layers, 2048, 8192, 32 heads, 8 of keys, vocabulary 128256)
and Llama 3.1 (8B: 32 layers, 4096, 14336, the same heads and vocabulary).
"""

from __future__ import annotations

import json as json_module
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer
from rich.table import Table

from benchmarks import sides
from benchmarks.language_process import GENAI
from models.genai import save_settings
from models.language import GPT_OSS_20B, language_model

SIZES: dict[str, dict[str, Any]] = {
    "1b": {"layers": 16, "width": 2048, "heads": 32, "groups": 8, "hidden": 8192, "vocabulary": 128256, "packed": True},
    "8b": {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "groups": 8,
        "hidden": 14336,
        "vocabulary": 128256,
        "packed": True,
    },
    "tiny": {"layers": 2, "width": 256, "heads": 8, "groups": 2, "hidden": 512, "vocabulary": 1024},
}

SMALL_MIXTURE: dict[str, Any] = {"experts": 8, "active": 2, "window": 128, "sinks": True, "biases": True}

console = sides.console()


def measured(
    path: Path,
    side: str,
    sizes: dict[str, Any],
    contexts: str,
    prompt: int,
    tokens: int,
    cache_bits: int | None = None,
    rows: str = "",
    drafts: str = "",
) -> dict[str, float]:
    """Of a side, in a process of its own."""
    if side in GENAI:
        provider, _, options = GENAI[side]
        save_settings(path.parent, sizes, provider, {"placement": "gpu", "strict": "1", **options})
    given = {
        "path": str(path),
        "side": side,
        "contexts": [int(c) for c in contexts.split(",")],
        "prompt": prompt,
        "tokens": tokens,
    }
    if side == "generate":
        numbers = {name: [int(n) for n in text.split(",") if n] for name, text in (("rows", rows), ("drafts", drafts))}
        given |= {"cache_bits": cache_bits, **numbers}
    command = [sys.executable, "-m", "benchmarks.language_process", json_module.dumps(given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json_module.loads(done.stdout.splitlines()[-1]))


def show(found: dict[str, dict[str, float]]) -> None:
    table = Table("", *found, title="a language model in int4")
    for key in dict.fromkeys(key for row in found.values() for key in row):
        table.add_row(key, *(f"{row[key]:.3f}" if key in row else "" for row in found.values()))
    console.print(table)


def main(
    sides: Annotated[
        str, typer.Option(help="generate, gpu, bound, cpu, genai, genai_executor, genai_own")
    ] = "generate,gpu,cpu",
    contexts: Annotated[str, typer.Option(help="Tokens before those that are timed.")] = "512,4096",
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens that are timed behind each context.")] = 64,
    accuracy_level: Annotated[int, typer.Option(help="Of the products; 4 lets prompts be rounded to bytes.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or float16")] = "float32",
    mixture: Annotated[
        bool, typer.Option("--mixture", help="A mixture of 32 experts, of gpt-oss-20b's shape.")
    ] = False,
    size: Annotated[str, typer.Option(help="1b, 8b, or tiny, to try it.")] = "1b",
    cache_bits: Annotated[int | None, typer.Option(help="8 or 4: caches of codes.")] = None,
    rows: Annotated[str, typer.Option(help="Numbers of rows side by side.")] = "",
    drafts: Annotated[str, typer.Option(help="Numbers of drafts that a pass verifies.")] = "",
    json: Annotated[Path | None, typer.Option(help="Also write what was found there.")] = None,
) -> None:
    """Measures decoding and prompts."""
    with tempfile.TemporaryDirectory() as folder:
        path, sizes = Path(folder) / "model.onnx", SIZES[size]
        if mixture:
            sizes = sizes | SMALL_MIXTURE if size == "tiny" else GPT_OSS_20B
        sizes = {**sizes, "context": max(8192, 2 * max(map(int, contexts.split(","))))}
        model = language_model(**sizes, accuracy=accuracy_level, dtype=dtype)  # type: ignore[arg-type]
        onnx.save_model(model, path, save_as_external_data=True, location="model.onnx.data")
        found = {
            side: measured(path, side, sizes, contexts, prompt, tokens, cache_bits, rows, drafts)
            for side in sides.split(",")
        }
    show(found)
    if json is not None:
        json.write_text(json_module.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
