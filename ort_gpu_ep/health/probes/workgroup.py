"""Workgroup memory and barriers, atomics, subgroups."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.kernels.registry import WORKGROUP

GROUPS = 37
ATOMICS = ("scatter_owner.wgsl", "line_scales.wgsl", "part_scales.wgsl")
"""Files with atomics in workgroup memory, but for those of matrix units, which have probes of their own."""

_HEAD = """
@group(0) @binding(0) var<storage, read> xs: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<{element}>;
"""

_SCAN = (
    _HEAD
    + """
var<workgroup> shared_sum: array<u32, {size}>;
@compute @workgroup_size({size})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    shared_sum[lane] = xs[group.x * {size}u + lane];
    workgroupBarrier();
    for (var step = 1u; step < {size}u; step *= 2u) {{
        var add = 0u;
        if (lane >= step) {{ add = shared_sum[lane - step]; }}
        workgroupBarrier();
        shared_sum[lane] += add;
        workgroupBarrier();
    }}
    out[group.x * {size}u + lane] = shared_sum[{size}u - 1u - lane];
}}
"""
)


@probe(
    "workgroup memory and barriers",
    "workgroups",
    disables=(WORKGROUP,),
    quick=True,
    fault=(r"shared_sum\[lane\] \+= add", "shared_sum[lane] = add"),
)
def barriers(trial: Trial) -> str:
    """Prefix sums by neighbours, read back in reverse: each step needs its two barriers. 1 to 256 invocations."""
    sizes = (256,) if trial.rounds == 1 else (1, 3, 31, 32, 33, 64, 65, 128, 255, 256)
    for _ in range(trial.rounds):
        for size in sizes:
            x = trial.integers(0, 2**20, GROUPS, size, dtype="uint32")
            got = trial.wgsl(
                "scan", _SCAN.format(element="u32", size=size), [x.reshape(-1)], ("uint32", x.size), GROUPS
            )
            agree(f"prefix sums of {size}", got.reshape(x.shape), np.cumsum(x, 1, dtype=np.uint32)[:, ::-1])
    return f"{trial.rounds * len(sizes) * GROUPS} workgroups of {sizes[0]} to {sizes[-1]}"


_WHOLE = (
    _HEAD
    + """
var<workgroup> words: array<u32, 4096>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    for (var k = lane; k < 4096u; k += 256u) {{ words[k] = xs[group.x * 4096u + k]; }}
    workgroupBarrier();
    for (var k = lane; k < 4096u; k += 256u) {{ out[group.x * 4096u + k] = words[(k * 1021u) & 4095u]; }}
}}
"""
)


@probe("all of the workgroup memory", "workgroups", disables=(WORKGROUP,), fault=("1021u", "1023u"))
def whole_memory(trial: Trial) -> str:
    """16 KiB written and read in another order, by several workgroups at a time."""
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**32, 8, 4096, dtype="uint32")
        got = trial.wgsl("words", _WHOLE.format(element="u32"), [x.reshape(-1)], ("uint32", x.size), 8)
        agree("a permutation of 16 KiB", got.reshape(x.shape), x[:, (np.arange(4096) * 1021) & 4095])
    return f"{trial.rounds * 8} times 16 KiB"


_ATOMIC = (
    _HEAD
    + """
var<workgroup> most: atomic<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {{
    let x = xs[id.x];
    if (lane == 0u) {{ atomicStore(&most, 0u); }}
    workgroupBarrier();
    atomicMax(&most, x);
    workgroupBarrier();
    if (lane == 0u) {{ atomicStore(&out[16u + group.x], atomicLoad(&most)); }}
    atomicAdd(&out[x % 16u], 1u);
}}
"""
)


@probe("atomics", "workgroups", disables=ATOMICS, fault=("atomicMax", "atomicMin"))
def atomics(trial: Trial) -> str:
    """A histogram in a buffer by all invocations, and the maximum of a workgroup in its memory."""
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**32, GROUPS, 64, dtype="uint32")
        got = trial.wgsl(
            "atomics", _ATOMIC.format(element="atomic<u32>"), [x.reshape(-1)], ("uint32", 16 + GROUPS), GROUPS
        )
        start = np.full(16, 0xFFFFFFFF, np.uint32)
        agree("histogram", got[:16], start + np.bincount(x.reshape(-1) % 16, minlength=16).astype(np.uint32))
        agree("maximum of a workgroup", got[16:], x.max(1))
    return f"{trial.rounds * GROUPS * 64} additions counted"


_STORED = (
    _HEAD
    + """
var<workgroup> words: array<atomic<u32>, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    atomicStore(&words[lane], xs[id.x]);
    workgroupBarrier();
    let first = atomicLoad(&words[63u - lane]);
    workgroupBarrier();
    atomicStore(&words[lane], lane + 1u);
    workgroupBarrier();
    out[2u * id.x] = first;
    out[2u * id.x + 1u] = atomicLoad(&words[63u - lane]);
}}
"""
)


@probe(
    "atomic stores over other numbers",
    "workgroups",
    disables=ATOMICS,
    fault=(r"atomicStore\(&words\[lane\], lane \+ 1u\)", "atomicAdd(&words[lane], lane + 1u)"),
    cure="exchanged_stores",
)
def stored(trial: Trial) -> str:
    """Two rounds in the same workgroup memory. Source: crbug.com/487773864, a driver whose stores add."""
    for _ in range(trial.rounds):
        x = trial.integers(1, 2**32, GROUPS, 64, dtype="uint32")
        got = trial.wgsl(
            "stores", _STORED.format(element="u32"), [x.reshape(-1)], ("uint32", 2 * x.size), GROUPS
        ).reshape(GROUPS, 64, 2)
        agree("the first round", got[..., 0], x[:, ::-1])
        agree("the second round", got[..., 1], np.tile(np.arange(64, 0, -1, dtype=np.uint32), (GROUPS, 1)))
    return f"{trial.rounds * GROUPS * 128} stores"


_PAIR = (
    _HEAD
    + """
var<workgroup> words: array<atomic<u32>, 3>;
@compute @workgroup_size(2)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let x = xs[group.x * 2u + lane];
    if (lane == 0u) {{ for (var k = 0u; k < 3u; k++) {{ atomicStore(&words[k], 0u); }} }}
    workgroupBarrier();
    atomicAdd(&words[0], x);
    atomicMax(&words[1], x);
    atomicXor(&words[2], x);
    workgroupBarrier();
    for (var k = lane; k < 3u; k += 2u) {{ out[group.x * 3u + k] = atomicLoad(&words[k]); }}
}}
"""
)


@probe("atomics of two invocations", "workgroups", disables=ATOMICS, fault=("atomicXor", "atomicOr"))
def pair(trial: Trial) -> str:
    """A workgroup of two adds, compares and combines bits in its memory. Source: crbug.com/42241359."""
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**32, GROUPS, 2, dtype="uint32")
        got = trial.wgsl("pairs", _PAIR.format(element="u32"), [x.reshape(-1)], ("uint32", 3 * GROUPS), GROUPS)
        agree("pairs", got.reshape(-1, 3), np.stack([x.sum(1, dtype=np.uint32), x.max(1), x[:, 0] ^ x[:, 1]], 1))
    return f"{trial.rounds * GROUPS} pairs"


_VECTORS = (
    _HEAD
    + """
var<workgroup> twos: array<vec2<u32>, 64>;
var<workgroup> threes: array<vec3<u32>, 64>;
var<workgroup> fours: array<vec4<u32>, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let start = (group.x * 64u + lane) * 4u;
    let v = vec4<u32>(xs[start], xs[start + 1u], xs[start + 2u], xs[start + 3u]);
    twos[lane] = v.xy;
    threes[63u - lane] = v.yzw;
    fours[lane] = v;
    workgroupBarrier();
    fours[lane][lane & 3u] += 1u;
    workgroupBarrier();
    let at = (group.x * 64u + lane) * 9u;
    let other = (lane * 29u) & 63u;
    for (var k = 0u; k < 2u; k++) {{ out[at + k] = twos[other][k]; }}
    for (var k = 0u; k < 3u; k++) {{ out[at + 2u + k] = threes[other][k]; }}
    for (var k = 0u; k < 4u; k++) {{ out[at + 5u + k] = fours[other][k]; }}
}}
"""
)


@probe("vectors in workgroup memory", "workgroups", disables=(WORKGROUP,), fault=("29u", "31u"))
def vectors(trial: Trial) -> str:
    """Vectors of two, three and four words, written whole or by element, read by element in another order."""
    other = np.arange(64) * 29 & 63
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**31, GROUPS, 64, 4, dtype="uint32")
        got = trial.wgsl(
            "vectors", _VECTORS.format(element="u32"), [x.reshape(-1)], ("uint32", GROUPS * 64 * 9), GROUPS
        )
        fours = x + (np.arange(4) == np.arange(64)[:, None] % 4).astype(np.uint32)
        want = np.concatenate([x[:, :, :2], x[:, ::-1, 1:], fours], 2)[:, other]
        agree("vectors", got.reshape(want.shape), want)
    return f"{trial.rounds * GROUPS * 192} vectors"


_SUBGROUP = (
    _HEAD
    + """
@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) place: u32, @builtin(subgroup_id) which: u32, @builtin(num_subgroups) count: u32) {{
    let i = group.x * {lanes}u + lane;
    let x = xs[i];
    out[i * 8u] = subgroupAdd(x);
    out[i * 8u + 1u] = subgroupBroadcastFirst(x);
    out[i * 8u + 2u] = size;
    out[i * 8u + 3u] = subgroupExclusiveAdd(1u);
    out[i * 8u + 4u] = subgroupAdd(1u);
    out[i * 8u + 5u] = place;
    out[i * 8u + 6u] = which;
    out[i * 8u + 7u] = count;
}}
"""
)


@probe(
    "subgroups",
    "workgroups",
    disables=("subgroup",),
    fault=(r"subgroupAdd\(x\)", "subgroupMax(x)"),
    cure="counted_subgroups",
)
def subgroups(trial: Trial) -> str:
    """Sums over subgroups that fill the workgroup, that the workgroup does not fill, and the last of which is filled in
    part."""
    trial.need("subgroup")
    sizes = set[int]()
    for _ in range(trial.rounds):
        for lanes in (12, 32, 64, 96, 128):
            x = trial.integers(0, 2**16, GROUPS * lanes, dtype="uint32")
            got = trial.wgsl(
                "subgroups", _SUBGROUP.format(element="u32", lanes=lanes), [x], ("uint32", 8 * x.size), GROUPS
            )
            for values, of_group in zip(x.reshape(GROUPS, -1), got.reshape(GROUPS, lanes, 8), strict=True):
                _subgroups_of(values, of_group, trial.gpu.limits.subgroup_size)
            sizes |= {int(size) for size in got.reshape(-1, 8)[:, 2]}
    return f"subgroups of {' and '.join(map(str, sorted(sizes)))}"


def _subgroups_of(x: Array, got: Array, size: int) -> None:
    """What a workgroup with these numbers gave. size: of every subgroup, if the adapter has one size. Raises
    WrongResultError."""
    agree("number of subgroups", got[:, 7], np.full(len(x), got[:, 6].max() + 1, np.uint32))
    if size and len(x) % size == 0:
        agree(f"invocations of subgroups of {size}", got[:, [2, 4]], np.full((len(x), 2), size, np.uint32))
    for which in range(int(got[0, 7])):
        its = got[:, 6] == which
        count, of_subgroup = int(its.sum()), got[its]
        agree(
            "places in a subgroup", of_subgroup[:, [3, 5]], np.repeat(np.arange(count, dtype=np.uint32)[:, None], 2, 1)
        )
        agree("invocations of a subgroup", of_subgroup[:, 4], np.full(count, count, np.uint32))
        agree("subgroupAdd", of_subgroup[:, 0], np.full(count, x[its].sum(dtype=np.uint32), np.uint32))
        agree("subgroupBroadcastFirst", of_subgroup[:, 1], np.full(count, x[its][0], np.uint32))


_QUADS = (
    _HEAD
    + """
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_id) which: u32, @builtin(num_subgroups) count: u32,
        @builtin(subgroup_size) size: u32) {{
    let x = xs[id.x];
    out[id.x * 6u] = quadSwapX(x);
    out[id.x * 6u + 1u] = quadSwapY(vec2<u32>(x, x)).y;
    out[id.x * 6u + 2u] = quadBroadcast(x, 2u);
    out[id.x * 6u + 3u] = which;
    out[id.x * 6u + 4u] = count * size;
    var far = x;
    for (var mask = 1u; mask < size; mask *= 2u) {{ far = subgroupShuffleXor(far, mask); }}
    out[id.x * 6u + 5u] = far;
}}
"""
)


@probe("fours in a subgroup", "workgroups", disables=("subgroup",), fault=("quadSwapX", "quadSwapY"))
def quads(trial: Trial) -> str:
    """Four invocations next to each other exchange values, and those that are further apart; subgroups count from 0."""
    trial.need("subgroup")
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**32, GROUPS * 128, dtype="uint32")
        got = trial.wgsl("quads", _QUADS.format(element="u32"), [x], ("uint32", 6 * x.size), GROUPS).reshape(-1, 6)
        four, place = x.reshape(-1, 4), np.arange(128) // max(1, 128 // max(1, int(got[:128, 3].max()) + 1))
        agree("quadSwapX", got[:, 0], four[:, [1, 0, 3, 2]].reshape(-1))
        agree("quadSwapY", got[:, 1], four[:, [2, 3, 0, 1]].reshape(-1))
        agree("quadBroadcast", got[:, 2], np.repeat(four[:, 2], 4))
        agree("subgroup_id", got[:, 3], np.tile(place, GROUPS).astype(np.uint32))
        agree("subgroups times their size", got[:, 4], np.full(x.size, 128, np.uint32))
        agree("subgroupShuffleXor", got[:, 5], x.reshape(GROUPS, int(got[:, 3].max()) + 1, -1)[:, :, ::-1].reshape(-1))
    return f"{GROUPS * 32} fours"


_NESTED = (
    _HEAD
    + """
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {{
    let most = subgroupMax(xs[group.x]);
    out[group.x] = subgroupMin(subgroupMax(most));
}}
"""
)


@probe(
    "reductions of one invocation",
    "workgroups",
    disables=("subgroup",),
    fault=(r"subgroupMin\(subgroupMax\(most\)\)", "subgroupMin(most) + 1u"),
)
def alone(trial: Trial) -> str:
    """subgroupMin of subgroupMax in workgroups of one. Source: a fault of AMD's drivers in Dawn's tests."""
    trial.need("subgroup")
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**32, GROUPS, dtype="uint32")
        agree("numbers alone", trial.wgsl("nested", _NESTED.format(element="u32"), [x], ("uint32", GROUPS), GROUPS), x)
    return f"{trial.rounds * GROUPS} numbers"


_DOT = """
@group(0) @binding(0) var<storage, read> xs: array<f32>;
@group(0) @binding(1) var<storage, read> ys: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
var<workgroup> parts: array<f32, 128>;
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32,
        @builtin(subgroup_invocation_id) place: u32, @builtin(subgroup_id) which: u32) {
    parts[lane] = 0.0;
    workgroupBarrier();
    var sum = 0.0;
    for (var k = lane; k < 4096u; k += 128u) { sum += xs[group.x * 4096u + k] * ys[group.x * 4096u + k]; }
    let total = subgroupAdd(sum);
    if (place == 0u) { parts[which] = total; }
    workgroupBarrier();
    if (lane == 0u) {
        var all = 0.0;
        for (var k = 0u; k < 128u; k++) { all += parts[k]; }
        out[group.x] = all;
    }
}
"""


@probe(
    "long sums over subgroups", "workgroups", disables=("subgroup",), fault=(r"subgroupAdd\(sum\)", "subgroupMax(sum)")
)
def long_sums(trial: Trial) -> str:
    """Dot products of 4,096 whole numbers, which float32 adds exactly in any order. Source: KosmicKrisp's, wrong from
    1,536 on."""
    trial.need("subgroup")
    for _ in range(trial.rounds):
        x, y = (trial.integers(-8, 9, GROUPS, 4096).astype(np.float32) for _ in range(2))
        got = trial.wgsl("dots", _DOT, [x.reshape(-1), y.reshape(-1)], ("float32", GROUPS), GROUPS)
        agree("dot products", got, (x * y).sum(1), 0.0)
    return f"{trial.rounds * GROUPS} sums"


_SHUFFLED = (
    _HEAD
    + """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) place: u32) {{
    let a = xs[id.x] & 0xffu;
    var sum = 0u;
    var mixed = 0u;
    for (var k = 0u; k < 4u; k++) {{
        let lane = (place & ~3u) + k;
        sum += subgroupShuffle(a, lane) * (k + 1u);
        mixed += subgroupShuffle(a * 3u, lane) ^ k;
    }}
    out[2u * id.x] = sum;
    out[2u * id.x + 1u] = mixed;
}}
"""
)


@probe("products by shuffles", "workgroups", disables=("subgroup",), fault=(r"\(k \+ 1u\)", "(k + 2u)"))
def shuffled(trial: Trial) -> str:
    """Operands that go from lane to lane of four. Source: github.com/Tencent/ncnn/issues/6778."""
    trial.need("subgroup")
    for _ in range(trial.rounds):
        x = trial.integers(0, 2**32, GROUPS * 64, dtype="uint32")
        got = trial.wgsl("shuffles", _SHUFFLED.format(element="u32"), [x], ("uint32", 2 * x.size), GROUPS)
        four, k = (x & 255).reshape(-1, 4), np.arange(4, dtype=np.uint32)
        want = np.stack([(four * (k + 1)).sum(1, dtype=np.uint32), (four * 3 ^ k).sum(1, dtype=np.uint32)], 1)
        agree("fours", got.reshape(-1, 2), np.repeat(want, 4, axis=0))
    return f"{trial.rounds * GROUPS * 16} fours"
