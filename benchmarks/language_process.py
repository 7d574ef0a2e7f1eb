"""One side of benchmarks/language.py in this process: a token, a prompt, the opening of a language model.

usage: python -m benchmarks.language_process '{"path": MODEL, "side": SIDE, "contexts": [512], "prompt": 512, "tokens":
64}'

Prints one JSON object. host_ms_N: of a token behind a context of N the part in which the program does not wait for the
GPU, submit_ms_N of it in submissions (a software adapter's last as long as what is submitted); gpu_ms_N: of its compute
passes, by timestamps in tokens of their own. host_open, host_most: resident memory beyond what the process had before
the model was opened, as parts of the model's size; weights too that are on a software adapter's device.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime

from benchmarks import cases
from ort_gpu_ep import Generator, InferenceSession, decoding_session, get_library_path, read_later
from ort_gpu_ep.cli import decoding
from ort_gpu_ep.device.timing import Stopwatch
from ort_gpu_ep.generation.drafts import Lookup
from ort_gpu_ep.plugin.graph_capture import CapturedGraph

GENAI: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "genai": ("WebGPU", "WebGpuExecutionProvider", {"enableGraphCapture": "1"}),
    "genai_executor": ("WebGPU", "WebGpuExecutionProvider", {}),
    "genai_own": ("WgpuExecutionProvider", "WgpuExecutionProvider", {}),
}
"""Sides of onnxruntime-genai: our provider's name in its settings, under which the library is registered, options."""

PROMPTS = 6
WARM_S = 1.0
"""Prompts behind the first one that are not timed: a GPU that was idle while its pipelines compiled has the clock of
one at rest, at which prompts take an H200 three times as long for 0.2 s.
"""
TIMED = 6
"""Tokens whose passes have timestamps."""

Step = Callable[[], object]
"""One more token, on the host when this returns."""


def memory_of(field: str) -> int:
    """Bytes, of /proc/self/status: VmRSS what is resident, VmHWM the most."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


class Opening:
    """Seconds and host memory of opening a model. nbytes: its size, with files beside it."""

    def __init__(self, path: str) -> None:
        self._nbytes = sum(f.stat().st_size for f in Path(path).parent.glob("model.onnx*"))
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        self._before, self._start = memory_of("VmRSS"), time.perf_counter()

    def end(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._start
        return {
            "opening_s": seconds,
            "host_most": (memory_of("VmHWM") - self._before) / self._nbytes,
            "host_open": (memory_of("VmRSS") - self._before) / self._nbytes,
        }


def timed(step: Step, count: int, gpu: Any) -> tuple[float, float, float]:
    """Medians of milliseconds of a token, of what it takes but for waiting for the GPU, and of submissions."""
    stats = gpu.stats if gpu is not None else None
    seen = []
    for _ in range(count):
        before = (stats.wait_s, stats.submit_s) if stats is not None else (0.0, 0.0)
        start = time.perf_counter()
        step()
        ended = time.perf_counter() - start
        waited, submitted = (stats.wait_s - before[0], stats.submit_s - before[1]) if stats is not None else before
        seen.append((ended * 1e3, (ended - waited) * 1e3, submitted * 1e3))
    ms, host_ms, submit_ms = np.median(seen, axis=0)
    return float(ms), float(host_ms), float(submit_ms)


def gpu_ms(step: Step, gpu: Any) -> float:
    """From the first pass of a token to its last one. Recordings that were made ahead have no timestamps: they are used
    up first."""
    gpu.timer = watch = Stopwatch(gpu, each=False)
    for _ in range(TIMED):
        step()
    passes = watch.read()
    gpu.stop_timing()
    return (max(end for *_, end in passes) - min(begin for *_, begin, _ in passes)) * 1e-6 if passes else float("nan")


def of_context(step: Step, context: int, tokens: int, gpu: Any) -> dict[str, float]:
    """step: tokens behind this context, the first of which are not timed."""
    for _ in range(tokens // 2):
        step()
    ms, host_ms, submit_ms = timed(step, tokens, gpu)
    found = {f"token_ms_{context}": ms}
    if gpu is not None:
        found |= {f"host_ms_{context}": host_ms, f"submit_ms_{context}": submit_ms}
        if "timestamp-query" in gpu.limits.features:
            found[f"gpu_ms_{context}"] = gpu_ms(step, gpu)
    return found


def _random_caches(pasts: Sequence[Any], rows: int) -> Iterator[np.ndarray]:
    """Of so many tokens, for a session's inputs."""
    rng = np.random.default_rng(3)
    for past in pasts:
        kind = np.float16 if "float16" in past.type else np.float32
        yield (0.5 * rng.standard_normal((1, past.shape[1], rows, past.shape[3]), np.float32)).astype(kind)


def _value(content: np.ndarray, device: str = "gpu") -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(content, device)


class Bound:
    """A loop by IO binding over caches of `rows` tokens on the session's device."""

    def __init__(self, path: str, side: str, rows: int) -> None:
        opening = Opening(path)
        if side == "cpu":
            self.session: Any = onnxruntime.InferenceSession(path, cases.quiet(), providers=["CPUExecutionProvider"])
            self.gpu = None
        else:
            self.session = InferenceSession(
                path, cases.quiet(), provider_options={"placement": "gpu", "strict": "1", "unit_plans": "wait"}
            )
            self.gpu = self.session._state.gpu
        self.opened = opening.end()
        self.binding, self._token, self._total = self.session.io_binding(), 1, 0
        pasts = self.session.get_inputs()[2:]
        for given, content in zip(pasts, _random_caches(pasts, rows), strict=True):
            cache = _value(content, "cpu" if side == "cpu" else "gpu")
            self.binding.bind_ortvalue_input(given.name, cache)
            self.binding.bind_ortvalue_output(given.name.replace("past_key_values", "present"), cache)

    def prompt(self, ids: np.ndarray) -> None:
        self._total = 0
        self._run(ids[None])

    def after(self, context: int) -> Step:
        self._total = context
        return lambda: self._run(np.array([[self._token]]))

    def _run(self, ids: np.ndarray) -> None:
        self._total += ids.shape[1]
        self.binding.bind_cpu_input("input_ids", ids)
        self.binding.bind_cpu_input("attention_mask", np.ones((1, self._total), np.int64))
        self.binding.bind_output("logits", "cpu")
        self.session.run_with_iobinding(self.binding)
        self._token = int(np.asarray(self.binding.get_outputs()[-1].numpy())[0, -1].argmax())


class OnDevice:
    """A loop by IO binding of a decoding_session: each step's token is the next step's input on the device, and the host
    reads it when the next step has been submitted."""

    def __init__(self, path: str, side: str, rows: int) -> None:
        opening = Opening(path)
        options = {"strict": 1, "unit_plans": "wait"}
        self.session = decoding_session(path, max_length=rows, provider_options=options, sess_options=cases.quiet())
        self.gpu = self.session._state.gpu  # type: ignore[union-attr]
        self.opened = opening.end()
        self._tokens, self._lengths = ([_value(np.ones((1, 1), np.int64)) for _ in range(2)] for _ in range(2))
        self._caches = [_value(cache) for cache in _random_caches(self.session.get_inputs()[2:], rows)]
        self._waiting = deque[Callable[[], list[np.ndarray]]]()
        self._bindings = [self._binding(place) for place in range(2)]
        self._at = 0

    def _binding(self, place: int, ids: np.ndarray | None = None) -> Any:
        """Reads a place, or tokens in host memory, and writes the other one."""
        binding, names = self.session.io_binding(), [i.name for i in self.session.get_inputs()]
        if ids is None:
            binding.bind_ortvalue_input(names[0], self._tokens[place])
        else:
            binding.bind_cpu_input(names[0], ids)
        binding.bind_ortvalue_input(names[1], self._lengths[place])
        presents = [o.name for o in self.session.get_outputs()[3:]]
        for past, present, cache in zip(names[2:], presents, self._caches, strict=True):
            binding.bind_ortvalue_input(past, cache)
            binding.bind_ortvalue_output(present, cache)
        binding.bind_ortvalue_output("generation.next", self._tokens[1 - place])
        binding.bind_ortvalue_output("generation.next_length", self._lengths[1 - place])
        return binding

    def prompt(self, ids: np.ndarray) -> None:
        self._lengths[1].update_inplace(np.array([[len(ids)]]))
        self.session.run_with_iobinding(self._binding(1, ids[None]))
        read_later(self._tokens[0])()

    def after(self, context: int) -> Step:
        while self._waiting:
            self._waiting.popleft()()
        self._lengths[self._at].update_inplace(np.array([[context + 1]]))
        self._submit()
        return self._next

    def _submit(self) -> None:
        self.session.run_with_iobinding(self._bindings[self._at])
        self._at = 1 - self._at
        self._waiting.append(read_later(self._tokens[self._at]))

    def _next(self) -> int:
        self._submit()
        return int(self._waiting.popleft()()[0].item())


def generator_of(path: str, length: int, **options: Any) -> Generator:
    """For prompts and answers of so many tokens, all on the GPU."""
    settings = {"strict": 1, "unit_plans": "wait"}
    return Generator(path, max_length=length, sess_options=cases.quiet(), provider_options=settings, **options)


class Generated:
    """ort_gpu_ep.Generator. cache_bits: of its caches' codes."""

    def __init__(self, path: str, side: str, rows: int, cache_bits: int | None = None) -> None:
        opening = Opening(path)
        self._generator = generator_of(path, rows, cache_bits=cache_bits)
        self.opened = opening.end()
        self.gpu = self._generator.session._state.gpu  # type: ignore[union-attr]

    def prompt(self, ids: np.ndarray) -> None:
        decoding.timed(self._generator, ids, 0)

    def after(self, context: int) -> Step:
        answer = self._generator.generate(np.random.default_rng(context).integers(0, 1000, context))
        return lambda: next(answer)


class Genai:
    """onnxruntime-genai's own loop over our provider."""

    def __init__(self, path: str, side: str, rows: int) -> None:
        import onnxruntime_genai as genai

        self._genai, self._rows, self.replays = genai, rows, _replays()
        opening = Opening(path)
        genai.register_execution_provider_library(GENAI[side][1], get_library_path())
        self._model = genai.Model(str(Path(path).parent))
        self.opened = opening.end()
        self._generator: Any = None

    @property
    def gpu(self) -> Any:
        from ort_gpu_ep.device import Gpu

        return next(iter(Gpu._open.values()))

    def prompt(self, ids: np.ndarray) -> None:
        settings = self._genai.GeneratorParams(self._model)
        settings.set_search_options(max_length=self._rows)
        self._generator = None  # its caches first
        self._generator = self._genai.Generator(self._model, settings)
        self._generator.append_tokens(ids.astype(np.int32))
        self._next()

    def after(self, context: int) -> Step:
        self.prompt(np.random.default_rng(context).integers(0, 1000, context))
        return self._next

    def _next(self) -> None:
        self._generator.generate_next_token()
        self._generator.get_next_tokens()


def _replays() -> list[CapturedGraph]:
    """Gets one more for each replay of a captured graph in this process, from now on."""
    seen, replay = list[CapturedGraph](), CapturedGraph.replay

    def counted(graph: CapturedGraph) -> bool:
        seen.append(graph)
        return replay(graph)

    CapturedGraph.replay = counted  # type: ignore[method-assign]
    return seen


def of_rows(path: str, rows: int, context: int, tokens: int) -> dict[str, float]:
    """A step of so many rows that are generated side by side, each behind a prompt of its own."""
    generator = generator_of(path, context + 2 * tokens, rows=rows)
    rng = np.random.default_rng(1)
    prompts, times = [rng.integers(0, 1000, context) for _ in range(rows)], list[float]()

    def timed(row: int, token: int) -> None:
        if row == 0:
            times.append(time.perf_counter())

    for _ in range(2):  # the first compiles
        times.clear()
        generator.generate_batch(prompts, max_new_tokens=2 * tokens, on_token=timed)
    ms = float(np.median(np.diff(times[-tokens:]))) * 1e3
    return {f"step_ms_of_{rows}_rows": ms, f"tokens_s_of_{rows}_rows": rows / ms * 1e3}


def of_passes(path: str, lookahead: int, context: int, tokens: int) -> dict[str, float]:
    """A pass that verifies so many drafts behind the last token, of which hardly one is right."""
    rng = np.random.default_rng(2)
    with mock.patch.object(Lookup, "__call__", lambda _, _tokens, count: rng.integers(0, 1000, count).tolist()):
        generator = generator_of(path, context + 4 * tokens, lookahead=lookahead)
        answer, gpu = generator.generate(rng.integers(0, 1000, context)), generator.session._state.gpu  # type: ignore[union-attr]
        for _ in range(tokens // 2):
            next(answer)
        ms, _, _ = timed(lambda: next(answer), tokens, gpu)
        count = 1 + lookahead
        return {f"pass_ms_of_{count}_tokens": ms, f"gpu_ms_of_{count}_tokens": gpu_ms(lambda: next(answer), gpu)}


def measure(
    path: str,
    side: str,
    contexts: list[int],
    prompt: int,
    tokens: int,
    cache_bits: int | None = None,
    rows: Sequence[int] = (),
    drafts: Sequence[int] = (),
) -> dict[str, float]:
    """What a side takes. Of side generate alone: cache_bits, rows (so many at once, each number timed), drafts (so many
    that a pass verifies, likewise)."""
    options: dict[str, Any] = {"cache_bits": cache_bits} if cache_bits is not None else {}
    sides: Mapping[str, type[Any]] = {"generate": Generated, "bound": OnDevice, **dict.fromkeys(GENAI, Genai)}
    made = sides.get(side, Bound)
    decoder = made(path, side, max(contexts) + 2 * tokens + 64, **options)
    rng, found = np.random.default_rng(1), dict[str, float](decoder.opened)

    def prompt_s() -> float:
        ids, start = rng.integers(0, 1000, prompt), time.perf_counter()
        decoder.prompt(ids)
        return time.perf_counter() - start

    found["first_prompt_s"] = prompt_s()
    warm = time.perf_counter()
    while time.perf_counter() - warm < WARM_S:
        prompt_s()
    found["prompt_tokens_s"] = prompt / float(np.median([prompt_s() for _ in range(PROMPTS)]))
    for context in contexts:
        step = decoder.after(context)
        before = len(decoder.replays) if side in GENAI else 0
        found |= of_context(step, context, tokens, decoder.gpu)
        if side in GENAI:
            found[f"replays_{context}"] = len(decoder.replays) - before
    if decoder.gpu is not None:
        stats = decoder.gpu.stats
        found |= {
            "device_MiB": (stats.allocated_nbytes - stats.pooled_nbytes) / 2**20,
            "device_most_MiB": stats.peak_nbytes / 2**20,
        }
    for count in rows:
        found |= of_rows(path, count, min(contexts), tokens)
    for count in drafts:
        found |= of_passes(path, count, min(contexts), tokens)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
