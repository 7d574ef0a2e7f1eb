"""What it would save to have several phases of a token in one dispatch, whose workgroups all are resident and wait for
each other, in place of a dispatch for each.

    python -m benchmarks.persistent [boundary] [chain] [resident] [--grids 132x256,264x128] [--vectors 2048] [--layers 16] [--json FILE]

`boundary`: each workgroup of a phase reads a whole vector, adds it up, and writes its share of the next one. `chain`: the
int4 products of a token of a 1B model (the shapes of Llama-3.2-1B without its head), attention left out. `resident`: with
how much workgroup memory how many workgroups a unit wait for each other and are right. Ways:

- `dispatches`: one for each phase, in a pass, as plans have them;
- `counter`: one dispatch; a workgroup that is done adds one to a counter and polls it. Vectors are atomics;
- `elements`: one dispatch; a word of a vector is 0 until it is written, and readers poll the words themselves;
- `plain`: as `counter`, but vectors are no atomics. WGSL does not promise that a workgroup sees what another wrote;
- `alone` (of `boundary`): one dispatch, each phase reads the first vector: what the phase takes without a boundary.

Of WGSL's promises only `elements` is right, and only where all workgroups make progress: no wait polls more than POLLS
times, and who gave up once waits no more, so nothing hangs. A wrong result is reported as such. llvmpipe may run workgroups one
after the other and takes loads of atomics out of loops: there one workgroup shows that the arithmetic is right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_time import Warmth
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import Buffer, Gpu
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.device.timing import Timer
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.webgpu import native

POLLS = 1 << 14
"""Of one wait: some 10 ms on a GPU."""

BATCH = 8
"""Elements that a lane loads before it uses the first."""

WAYS = ("dispatches", "counter", "elements", "plain")
PHASES = 64
"""Of a run of `boundary`."""

BLOCK = 32
PRODUCTS = (("qkv", 3072, 2048, 2), ("o", 2048, 2048, 1), ("gate_up", 16384, 2048, 4), ("down", 2048, 8192, 1))
"""Of a layer: name, rows, elements of the vector, rows that a subgroup takes at a time."""
WIDEST = max(k for _, _, k, _ in PRODUCTS)

Grid = tuple[int, int]
"""Workgroups, and invocations of each."""


def head(way: str, grid: Grid) -> str:
    """How vectors are read and written, and `meet`, where workgroups wait for each other. A vector begins at an element."""
    atomic = way in ("counter", "elements", "alone")
    one = "atomic<u32>" if atomic else "f32"
    load, store = ("bitcast<f32>(atomicLoad(&v[i]))", "atomicStore(&v[i], {})") if atomic else ("v[i]", "v[i] = x")
    bits = "bitcast<u32>(x)"
    stored = f"select({bits}, 0x80000000u, x == 0.0)" if way == "elements" else bits
    texts = [f"const GROUPS: u32 = {grid[0]}u; const SIZE: u32 = {grid[1]}u; const POLLS: u32 = {POLLS}u;"]
    if way == "dispatches":
        texts.append("@group(0) @binding(0) var<storage, read> v: array<f32>;")
        texts.append("@group(0) @binding(1) var<storage, read_write> y: array<f32>;")
        texts.append("fn put(i: u32, x: f32) { y[i] = x; }")
    else:
        texts.append(f"@group(0) @binding(0) var<storage, read_write> v: array<{one}>;")
        texts.append("@group(0) @binding(1) var<storage, read_write> arrived: array<atomic<u32>>;")
        texts.append(f"fn put(i: u32, x: f32) {{ {store.format(stored)}; }}")
    texts.append(f"fn taken(i: u32) -> f32 {{ return {load}; }}")
    texts.append(
        """
var<private> has_patience: bool = true;
var<private> part: u32;     // of a subgroup
var<private> team: u32;     // subgroups are teams
var<private> team_size: u32;
var<workgroup> sums: array<f32, SIZE>;

fn all_of_group(sum: f32) -> f32 {
    let own = subgroupAdd(sum);
    workgroupBarrier();
    if (part == 0u) { sums[team] = own; }
    workgroupBarrier();
    var all = 0.0;
    for (var i = 0u; i < SIZE / team_size; i++) { all += sums[i]; }
    return all;
}
"""
    )
    if way in ("counter", "plain"):
        texts.append(
            """
fn meet(lane: u32, count: u32) {
    storageBarrier();
    if (lane == 0u) {
        atomicAdd(&arrived[0], 1u);
        var waits = has_patience;
        for (var k = 0u; k < POLLS && waits; k++) { waits = atomicLoad(&arrived[0]) < count * GROUPS; }
        has_patience = has_patience && !waits;
    }
    storageBarrier();
}
"""
        )
    else:
        texts.append("fn meet(lane: u32, count: u32) { workgroupBarrier(); }")
    return "\n".join(texts)


def reading(way: str, length: int, use: str) -> str:
    """A vector of so many elements from `source` on: `use` is done for each, of which i is the number and x the value."""
    lines = [f"for (var first = lane; first < {length}u; first += SIZE * {BATCH}u) {{"]
    lines += [f"var x{k} = taken(source + first + {k}u * SIZE);" for k in range(BATCH)]
    if way == "elements":
        missing = " || ".join(f"bitcast<u32>(x{k}) == 0u" for k in range(BATCH))
        again = " ".join(
            f"if (bitcast<u32>(x{k}) == 0u) {{ x{k} = taken(source + first + {k}u * SIZE); }}" for k in range(BATCH)
        )
        lines += [
            f"var waits = {missing};",
            "waits = waits && has_patience;",
            f"for (var k = 0u; k < POLLS && waits; k++) {{ {again} waits = {missing}; }}",
            "has_patience = has_patience && !waits;",
        ]
    lines += [f"{{ let i = first + {k}u * SIZE; let x = x{k}; {use} }}" for k in range(BATCH)]
    return "\n    ".join((*lines, "}"))


def main_of(grid: Grid, body: str) -> str:
    return f"""
@compute @workgroup_size({grid[1]}) fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_invocation_id) own: u32, @builtin(subgroup_size) size: u32) {{
    let group = id.x;
    part = own;
    team_size = size;
    team = lane / size;
    {body}
}}
"""


def boundary_source(way: str, grid: Grid, length: int, room: int = 0) -> str:
    """room: words of workgroup memory that each workgroup has and does not need."""
    share = -(-length // grid[0])
    assert length % (grid[1] * BATCH) == 0, (grid, length)
    text = f"""
fn phase(group: u32, lane: u32, source: u32, goal: u32) {{
    var sum = 0.0;
    {reading(way, length, "sum += x;")}
    let all = u32(all_of_group(sum));
    for (var j = group * {share}u + lane; j < min((group + 1u) * {share}u, {length}u); j += SIZE) {{
        put(goal + j, f32((u32(taken(source + (j * 7u + 13u) % {length}u)) + all) & 1023u));
    }}
}}
"""
    source = "0u" if way == "alone" else f"k * {length}u"
    loop = f"""for (var k = 0u; k < {PHASES}u; k++) {{
        phase(group, lane, {source}, (k + 1u) * {length}u);
        meet(lane, k + 1u);
    }}"""
    body = "phase(group, lane, 0u, 0u);" if way == "dispatches" else loop
    if room:
        text += f"var<workgroup> room: array<u32, {room}>;\n"
        body = f"""room[(lane * 7919u + u32(taken(0u))) % {room}u] = lane;
    workgroupBarrier();
    if (room[u32(taken(1u)) % {room}u] == 0xffffffffu) {{ put(0u, 1.0); }}
    {body}"""
    return head(way, grid) + text + main_of(grid, body)


def boundary_result(x: Array, phases: int) -> Array:
    places = (np.arange(len(x)) * 7 + 13) % len(x)
    for _ in range(phases):
        x = (x[places] + x.sum()) & 1023
    return x


def place(n: str, k: int) -> str:
    """Where element n of a vector of k elements is: what neighbours read of their blocks lies together."""
    return f"(({n} % {BLOCK}u / 4u * {k // BLOCK}u + {n} / {BLOCK}u) * 4u + {n} % 4u)"


def product(way: str, at: int) -> str:
    """A function of one of PRODUCTS: y = W x / rms(x), of gate and up silu(y[2 n]) y[2 n + 1]. A lane has blocks of
    ROWS rows; the next one's are under way while it has those before, the first while the vector is waited for. Codes
    become numbers as mantissas where they are, so x is divided by 16 for each code below in the word.
    """
    name, n, k, rows = PRODUCTS[at]
    blocks, following = k // BLOCK, PRODUCTS[(at + 1) % len(PRODUCTS)][2]

    def load(row: str, block: str) -> str:
        lines = (
            f"next{r} = w[base + min({row} + {r}u, {n - 1}u) * {blocks}u + {block}]; "
            f"next_scale{r} = scales[base + min({row} + {r}u, {n - 1}u) * {blocks}u + {block}];"
            for r in range(rows)
        )
        return "\n    ".join(lines)

    def dot(r: int) -> str:
        lines = [f"var d{r} = 0.0;"]
        for c in range(4):
            low = f"(vec4<u32>(now{r}[{c}]) & vec4<u32>(0xfu, 0xf0u, 0xf00u, 0xf000u))"
            high = f"(vec4<u32>(now{r}[{c}], vec3<u32>(now{r}[{c}] >> 20u)) & vec4<u32>(0xf0000u, 0xfu, 0xf0u, 0xf00u))"
            for word, j, zero in ((low, 2 * c, "ZERO_LOW"), (high, 2 * c + 1, "ZERO_HIGH")):
                lines.append(
                    f"d{r} += dot(bitcast<vec4<f32>>({word} | vec4<u32>(0x4b000000u)) - {zero}, xs[{j * blocks}u + b]);"
                )
        return "\n            ".join((*lines, f"sum{r} = fma(scale{r}, d{r}, sum{r});"))

    each = range(rows)
    if name == "gate_up":
        results = [f"silu(all{2 * r}) * all{2 * r + 1}" for r in range(rows // 2)]
        target = "row / 2u"
    else:
        results, target = [f"all{r}" for r in each], "row"
    writes = "\n        ".join(
        f"if (part == {r}u) {{ let i = {target} + {r}u; put(goal + select(i, {place('i', following)}, i < {following}u), "
        f"{result}); }}"
        for r, result in enumerate(results)
    )
    use = f"squares += x * x; let e = i / 4u / {blocks}u % 2u * 4u + i % 4u; xs[i / 4u][i % 4u] = x * smaller(e);"
    lines = "\n    "
    return f"""
fn {name}(group: u32, lane: u32, base: u32, source: u32, goal: u32) {{
    let step = GROUPS * (SIZE / team_size) * {rows}u;
    var row = (group * (SIZE / team_size) + team) * {rows}u;
    {lines.join(f"var next{r}: vec4<u32>; var next_scale{r}: f32;" for r in each)}
    {load("row", "part")}
    var squares = 0.0;
    {reading(way, k, use)}
    let factor = inverseSqrt(all_of_group(squares) / {k}.0 + 1e-5);
    for (; row < {n}u; row += step) {{
        {" ".join(f"var sum{r} = 0.0;" for r in each)}
        for (var b = part; b < {blocks}u; b += team_size) {{
            {" ".join(f"let now{r} = next{r}; let scale{r} = next_scale{r};" for r in each)}
            let is_last = b + team_size >= {blocks}u;
            let next_row = select(row, row + step, is_last);
            let next_block = select(b + team_size, part, is_last);
            {load("next_row", "next_block")}
            {(lines + "        ").join(dot(r) for r in each)}
        }}
        {" ".join(f"let all{r} = subgroupAdd(sum{r}) * factor;" for r in each)}
        {writes}
    }}
}}
"""


def chain_source(way: str, grid: Grid, at: Sequence[int], layers: int) -> str:
    """The products of PRODUCTS with numbers `at`: one, that a dispatch has, or all."""
    longest = max(PRODUCTS[k][2] for k in at)
    text = f"""
@group(0) @binding(2) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> scales: array<f32>;
var<workgroup> xs: array<vec4<f32>, {longest // 4}>;
const ZERO_LOW = vec4<f32>(8388616.0, 8388736.0, 8390656.0, 8421376.0);
const ZERO_HIGH = vec4<f32>(8912896.0, 8388616.0, 8388736.0, 8390656.0);
fn silu(x: f32) -> f32 {{ return x / (1.0 + exp(-x)); }}
fn smaller(e: u32) -> f32 {{ return bitcast<f32>((127u - 4u * select(e, e - 5u, e > 4u)) << 23u); }}
"""
    text += "".join(product(way, k) for k in at)
    if way == "dispatches":
        body = f"{PRODUCTS[at[0]][0]}(group, lane, 0u, 0u, 0u);"
    else:
        calls = []
        for k in at:
            phase, base = f"(layer * {len(at)}u + {k}u)", f"layer * {blocks_of(len(at))}u + {blocks_of(k)}u"
            calls.append(f"{PRODUCTS[k][0]}(group, lane, {base}, {phase} * {WIDEST}u, ({phase} + 1u) * {WIDEST}u);")
            calls.append(f"meet(lane, {phase} + 1u);")
        inner = "\n        ".join(calls)
        body = f"for (var layer = 0u; layer < {layers}u; layer++) {{\n        {inner}\n    }}"
    return head(way, grid) + text + main_of(grid, body)


def blocks_of(count: int) -> int:
    """Of the first so many products of a layer."""
    return sum(n * k for _, n, k, _ in PRODUCTS[:count]) // BLOCK


@dataclass(frozen=True, slots=True)
class Weights:
    """The same numbers in each layer, in memory of its own. codes: bytes of two codes, a row of blocks each."""

    codes: list[Array]
    scales: list[Array]

    @classmethod
    def drawn(cls) -> Weights:
        rng = np.random.default_rng(0)
        codes = [rng.integers(0, 256, n * k // 2, np.uint8) for _, n, k, _ in PRODUCTS]
        scales = [rng.uniform(0.5, 1.5, n * k // BLOCK).astype("f") / 5 / k**0.5 for _, n, k, _ in PRODUCTS]
        return cls(codes, [s.astype(np.float32) for s in scales])

    def dense(self, at: int) -> Array:
        _, n, k, _ = PRODUCTS[at]
        packed = self.codes[at].reshape(-1, BLOCK // 2)
        both = np.stack([packed & 15, packed >> 4], -1).reshape(-1, BLOCK).astype(np.float32) - 8
        return (both * self.scales[at][:, None]).reshape(n, k)


def ordered(x: Array) -> Array:
    """As `place` has it."""
    return np.ascontiguousarray(x.reshape(-1, 8, 4).transpose(1, 0, 2)).ravel()


def unordered(x: Array) -> Array:
    return x.reshape(8, -1, 4).transpose(1, 0, 2).ravel()


Step = tuple[Any, Any, tuple[int, int, int]]
"""Pipeline, bind group, workgroups."""


class Bench:
    """Buffers live until `close`."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.timer, self._buffers = gpu, Timer(gpu), list[Buffer]()

    def buffer(self, nbytes: int) -> Buffer:
        self._buffers.append(self.gpu.allocate(nbytes))
        return self._buffers[-1]

    def fill(self, buffer: Buffer, data: Array, offset: int = 0) -> None:
        self.gpu.upload(buffer, offset, data.ctypes.data, data.nbytes)

    def pipeline(self, source: str, written: tuple[bool, ...]) -> Any:
        device, layout = self.gpu.device, bind_group_layout(self.gpu, written)
        module = native.trusted_module(device, "persistent", source)
        return device.create_compute_pipeline("persistent", device.create_pipeline_layout(layout), module)

    def group(self, written: tuple[bool, ...], ranges: Sequence[tuple[Buffer, int, int]]) -> Any:
        bound = [(buffer.native, offset, nbytes) for buffer, offset, nbytes in ranges]
        return self.gpu.device.create_bind_group("persistent", bind_group_layout(self.gpu, written), bound)

    def us(self, steps: Sequence[Step], prepare: Callable[[], None]) -> float:
        """Of all steps in one pass, the median of some passes; `prepare` is called before each."""

        def once() -> float:
            prepare()
            encoder = self.gpu.device.create_command_encoder("persistent")
            compute = encoder.begin_compute_pass(self.timer.writes(0))
            native.Steps([(*step, None, 1) for step in steps]).record(compute)
            compute.end()
            self.timer.resolve(encoder)
            self.gpu.execute([native.finish(encoder)])
            return self.timer.read_s() * 1e6

        once()
        return float(np.median([once() for _ in range(1 if self.gpu.info.is_software else 9)]))

    def read(self, buffer: Buffer, first: int, count: int) -> Array:
        got = np.zeros(count, np.float32)
        self.gpu.download(buffer, 4 * first, got.ctypes.data, got.nbytes)
        return got

    def close(self) -> None:
        for buffer in self._buffers:
            self.gpu.free(buffer)


def resident(bench: Bench, kib: int, lanes: int = 128) -> int:
    """Workgroups a unit that wait for each other and are right, each with so much memory."""
    units, most = bench.gpu.limits.figures.units, 0
    for count in (1, 2, 3, 4, 5, 6, 8, 12, 16):
        if not boundary(bench, "counter", (units * count, lanes), 2048, 256 * kib)[1]:
            break
        most = count
    return most


def boundary(bench: Bench, way: str, grid: Grid, length: int, room: int = 0) -> tuple[float, bool]:
    """Microseconds of a phase, and whether the last vector is right."""
    x = np.random.default_rng(length).integers(0, 1024, length)
    first, nbytes = x.astype(np.float32), 4 * length
    source, groups = boundary_source(way, grid, length, room), (grid[0], 1, 1)
    if way == "dispatches":
        pair, written = [bench.buffer(nbytes) for _ in range(2)], (False, True)
        pipe = bench.pipeline(source, written)
        bound = [bench.group(written, [(b, 0, nbytes) for b in order]) for order in (pair, pair[::-1])]
        us = bench.us([(pipe, bound[k % 2], groups) for k in range(PHASES)], lambda: bench.fill(pair[0], first))
        got = bench.read(pair[PHASES % 2], 0, length)
    else:
        vectors, count, written = bench.buffer(nbytes * (PHASES + 1)), bench.buffer(16), (True, True)
        pipe = bench.pipeline(source, written)
        bound = [bench.group(written, [(vectors, 0, nbytes * (PHASES + 1)), (count, 0, 16)])]

        def prepare() -> None:
            bench.gpu.clear(vectors, nbytes * (PHASES + 1))
            bench.gpu.clear(count, 16)
            bench.fill(vectors, np.where(first == 0, np.float32(-0.0), first))

        us = bench.us([(pipe, bound[0], groups)], prepare)
        got = bench.read(vectors, length * PHASES, length)
    return us / PHASES, bool(np.array_equal(np.abs(got), boundary_result(x, 1 if way == "alone" else PHASES)))


class Chain:
    """The products of a token, their weights on the device."""

    def __init__(self, bench: Bench, layers: int) -> None:
        self.bench, self.layers, drawn = bench, layers, Weights.drawn()
        self.x = np.random.default_rng(1).standard_normal(PRODUCTS[0][2], np.float32)
        self.dense = [drawn.dense(at).astype(np.float64) for at in range(len(PRODUCTS))]
        blocks = blocks_of(len(PRODUCTS))
        self.w, self.scales = bench.buffer(16 * blocks * layers), bench.buffer(4 * blocks * layers)
        for layer in range(layers):
            for at, (codes, scales) in enumerate(zip(drawn.codes, drawn.scales, strict=True)):
                bench.fill(self.w, codes, 16 * (layer * blocks + blocks_of(at)))
                bench.fill(self.scales, scales, 4 * (layer * blocks + blocks_of(at)))
        self.phases = layers * len(PRODUCTS)
        self.nbytes = 4 * WIDEST * (self.phases + 1)
        self.pair, self.count = [bench.buffer(self.nbytes) for _ in range(2)], bench.buffer(16)

    def prepare(self) -> None:
        """All vectors become 0 but the first."""
        for buffer in self.pair:
            self.bench.gpu.clear(buffer, self.nbytes)
        self.bench.gpu.clear(self.count, 16)
        self.bench.fill(self.pair[0], ordered(self.x))

    def us(self, way: str, grid: Grid) -> tuple[float, float]:
        """Microseconds of a token's products, and the largest relative error of a vector, by the one before."""
        bench, groups, blocks = self.bench, (grid[0], 1, 1), blocks_of(len(PRODUCTS))
        if way == "dispatches":
            written, steps = (False, True, False, False), list[Step]()
            pipes = [bench.pipeline(chain_source(way, grid, [at], self.layers), written) for at in range(len(PRODUCTS))]
            for phase in range(self.phases):
                layer, at = divmod(phase, len(PRODUCTS))
                begin, count = layer * blocks + blocks_of(at), blocks_of(at + 1) - blocks_of(at)
                vectors = [(self.pair[k % 2], 4 * WIDEST * k, 4 * WIDEST) for k in (phase, phase + 1)]
                weights = [(self.w, 16 * begin, 16 * count), (self.scales, 4 * begin, 4 * count)]
                steps.append((pipes[at], bench.group(written, [*vectors, *weights]), groups))
        else:
            written = (True, True, False, False)
            weights = [(self.w, 0, 16 * blocks * self.layers), (self.scales, 0, 4 * blocks * self.layers)]
            ranges = [(self.pair[0], 0, self.nbytes), (self.count, 0, 16), *weights]
            pipe = bench.pipeline(chain_source(way, grid, range(len(PRODUCTS)), self.layers), written)
            steps = [(pipe, bench.group(written, ranges), groups)]
        us = bench.us(steps, self.prepare)
        vectors = [bench.read(buffer, 0, self.nbytes // 4).reshape(-1, WIDEST) for buffer in self.pair]
        return us, self.error([vectors[k % 2 if way == "dispatches" else 0][k] for k in range(self.phases + 1)])

    def error(self, vectors: Sequence[Array]) -> float:
        errors = []
        for at, (name, n, k, _) in enumerate(PRODUCTS):
            count, following = n // 2 if name == "gate_up" else n, PRODUCTS[(at + 1) % len(PRODUCTS)][2]
            x = np.stack([unordered(v[:k]) for v in vectors[at : -1 : len(PRODUCTS)]], -1).astype(np.float64)
            y = self.dense[at] @ (x / np.sqrt(np.mean(x * x, axis=0) + 1e-5))
            if name == "gate_up":
                y = y[::2] / (1 + np.exp(-y[::2])) * y[1::2]
            after = vectors[at + 1 :: len(PRODUCTS)]
            got = np.stack([np.append(unordered(v[:following]), v[following:count]) for v in after], -1)
            errors += list(np.linalg.norm(got - y, axis=0) / np.linalg.norm(y, axis=0))
        return float(np.max(errors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["boundary", "chain"], help="boundary, chain, resident")
    parser.add_argument("--grids", default="132x128,132x256,264x128,264x256,528x128,528x256")
    parser.add_argument("--vectors", default="2048,8192,14336")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--adapter", default="")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    gpu, console, rows = open_gpu(resolve({"adapter": asked.adapter})), Console(width=140), list[dict[str, Any]]()
    grids = [(int(a), int(b)) for a, b in (grid.split("x") for grid in asked.grids.split(","))]
    warmth = None if gpu.info.is_software else Warmth(gpu, Config(adapter=asked.adapter))
    for what in asked.what:
        bench = Bench(gpu)
        if what == "resident":
            for kib in (1, 8, 12, 15, 16, 20, 24, 32, 46):
                rows.append({"what": what, "kib": kib, "of_unit": resident(bench, kib)})
                console.print(f"{kib} KiB: {rows[-1]['of_unit']} workgroups a unit")
            bench.close()
            continue
        table = Table(title=f"{what}, {gpu.info.name}")
        for name in ("vector" if what == "boundary" else "layers", "workgroups", "way", "us", "us a boundary", "right"):
            table.add_column(name, justify="right")
        chain = Chain(bench, asked.layers) if what == "chain" else None
        for size in [asked.layers] if chain else map(int, asked.vectors.split(",")):
            for grid in grids:
                if warmth is not None:
                    warmth.give()
                base = 0.0
                for way in WAYS if chain else ("alone", *WAYS):
                    if chain:
                        us, error = chain.us(way, grid)
                        right, apart = error < 1e-5, (us - base) / chain.phases if base else 0.0
                    else:
                        us, right = boundary(bench, way, grid, size)
                        error, apart = 0.0, us - base if base else 0.0
                    base = base or us
                    row = {"what": what, "size": size, "groups": grid[0], "lanes": grid[1], "way": way, "us": us}
                    rows.append(row | {"apart_us": apart, "right": right, "error": error})
                    said = "yes" if right else "NO"
                    table.add_row(str(size), "x".join(map(str, grid)), way, f"{us:.2f}", f"{apart:+.2f}", said)
        bench.close()
        console.print(table)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
