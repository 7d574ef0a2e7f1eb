"""Probes of products with compressed weights, of their reordering, and of decoders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ort_gpu_ep.health.probe import SUMS_OF_PRODUCTS, Trial, agree, graph_of, probe
from ort_gpu_ep.ir.graph import BESIDE, Array, Attribute, Node, Step
from ort_gpu_ep.ir.types import BY_NAME, FLOAT32
from ort_gpu_ep.ir.types import packed as as_bytes
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import INLINED
from ort_gpu_ep.kernels.target import SUBNORMAL_HALVES
from ort_gpu_ep.ops import packed as packed_ops
from ort_gpu_ep.ops import pruned as pruned_ops
from ort_gpu_ep.ops import sparse_products
from ort_gpu_ep.ops.byte_vectors import ROUNDED_BEFORE
from ort_gpu_ep.ops.packed_products import BLOCKS_OF_FOUR
from ort_gpu_ep.ops.packed_vectors import HALVES, HELD, HOLDING, SPARSE_TEAMS
from ort_gpu_ep.ops.rounded_products import ROUNDED
from ort_gpu_ep.weights.formats import pack_codes, pack_sparse
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN, SPARSE


def _product(
    trial: Trial,
    m: int,
    k: int,
    n: int,
    kind: str,
    transposed: bool,
    back: bool = False,
    block: int = 0,
    peak: float = 0.0,
) -> None:
    """x [m, k] times a matrix of codes, stored as [k, n] or as n rows, with a scale and a zero point for each of n.

    block: or for each so many codes of it. back: the codes and scales are asked back, too. peak: the last of x.
    """
    dtype = BY_NAME[kind]
    low = -(1 << dtype.bits - 1) if dtype.value == "i32" else 0
    shape = (n, k) if transposed else (k, n)
    blocks = -(-k // block) if block else 1
    scales = (n,) if not block else (n, blocks) if transposed else (blocks, n)
    codes, zeros = (trial.integers(low, low + (1 << dtype.bits), *s) for s in (shape, scales))
    scale, x = abs(trial.normal(*scales)) + np.float32(0.1), trial.normal(m, k)
    x[:, k - 1] = peak or x[:, k - 1]
    constants = {"w": codes.astype(dtype.numpy), "s": scale, "z": zeros.astype(dtype.numpy)}
    node = Node(
        "PackedGemm",
        ("x", "w", "s", "z"),
        ("y",),
        domain="ort_gpu_ep",
        version=1,
        attributes={
            "transA": 0,
            "transB": int(transposed),
            "alpha": 1.0,
            "beta": 1.0,
            "weight_axis": int(transposed == bool(block)),
            "weight_block": block,
            "weight_bits": 0,
            "weight_shape": (),
            "weight_perm": (),
            "weight_sparse": 0,
        },
    )
    graph = graph_of({"x": x}, constants, node)

    def wide(given: Array) -> Array:
        array: Array = given.T if transposed else given
        return np.repeat(array, block, axis=0)[:k] if block and given is not codes else array

    agree(
        f"{kind} {m} x {k} x {n}",
        trial.graph(graph, [x])[0],
        x.astype(np.float64) @ ((wide(codes) - wide(zeros)) * wide(scale).astype(np.float64)),
    )
    if back:
        agree(f"{kind} {k} x {n} given back", trial.weight(graph, [x], "w"), as_bytes(constants["w"]), 0.0)
    if back and block:
        agree(f"scales of {kind} {k} x {n} given back", trial.weight(graph, [x], "s"), scale, 0.0)


@probe("packed weights", "kernels", disables=("packed_matvec.wgsl", "packed_product.wgsl", "repack.wgsl"))
def packed(trial: Trial) -> str:
    """Vectors and tiles, rows of codes and columns of codes, whole and odd sizes."""
    kinds = ("uint8", "int8", "int4", "uint2")
    for kind, transposed, (m, k, n) in trial.repeated(kinds, (False, True), ((1, 64, 9), (3, 67, 5), (17, 131, 66))):
        _product(trial, m, k, n, kind, transposed)
    return ", ".join(kinds)


_HALVES = """
@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<vec2<f32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { out[id.x] = unpack2x16float(words[id.x] & 0x03ff03ffu) * 16777216.0; }
"""


@probe("packed weights together", "kernels", disables=("packed_matvecs.wgsl",))
def together(trial: Trial) -> str:
    """Three products of one input behind a normalization, and two of which one is an argument of the other's step."""
    for ((count, rows, beside),) in trial.repeated(
        ((1, (69, 12, 5), False), (3, (33, 20), False), (2, (37, 37), True)), of=2
    ):
        _together(trial, count, 132, rows, beside)
    return "queries, keys and values; gated units"


def _together(trial: Trial, count: int, k: int, rows: tuple[int, ...], beside: bool) -> None:
    """x [count, k], divided by its root mean square, times matrices of so many rows in blocks of 16."""
    blocks, x, gamma = -(-k // 16), trial.normal(count, k), trial.normal(k)
    constants, dense, names = {"g": gamma}, list[Array](), ["x", "g"]
    for i, n in enumerate(rows):
        codes, scale = (
            trial.integers(0, 256, n, blocks, 8).astype(np.uint8),
            abs(trial.normal(n, blocks)) + np.float32(0.1),
        )
        constants |= {f"w{i}": codes, f"s{i}": scale, f"c{i}": trial.normal(n)}
        names += [f"w{i}", f"s{i}", "", f"c{i}"]
        wide = np.stack((codes & 15, codes >> 4), 3).reshape(n, blocks, 16).astype(np.float64) - 8
        dense.append((wide * scale[..., None]).reshape(n, -1)[:, :k])
    outputs = ("y0",) if beside else tuple(f"y{i}" for i in range(len(rows)))
    node = Node(
        "PackedProducts",
        tuple(names),
        outputs,
        domain="ort_gpu_ep",
        version=1,
        attributes={"K": k, "N": rows, "bits": 4, "block_size": 16, "epsilon": 1e-5, "beside": int(beside)},
        epilogue=(Step("Sub", "x - y", ("v", BESIDE), FLOAT32),) if beside else (),
    )
    graph = graph_of({"x": x}, constants, node)
    normed = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * gamma
    expected = [normed @ d.T + constants[f"c{i}"] for i, d in enumerate(dense)]
    expected = [expected[0] - expected[1]] if beside else expected
    for i, (got, want) in enumerate(zip(trial.graph(graph, [x]), expected, strict=True)):
        agree(f"{count} x {k} x {rows}, {i}", got, want)


@probe(
    "subnormal float16", "kernels", disables=(SUBNORMAL_HALVES,), fault=("0x10001u", "0x10000u"), ops=SUMS_OF_PRODUCTS
)
def subnormal(trial: Trial) -> str:
    """All float16 numbers that are too small for an exponent, and products whose codes are read as such numbers: none
    becomes zero."""
    low = np.arange(1024)
    words = (low | low[::-1] << 16 | trial.integers(0, 64, 1024) << 10).astype(np.uint32)
    got = trial.wgsl("halves", _HALVES, [words], ("float32", 2048), 16)
    agree("numbers", got.reshape(-1, 2), np.stack((low, low[::-1]), 1).astype(np.float32), 0.0)
    usual = trial.gpu.limits
    trial.gpu.limits = replace(usual, features=usual.features | {SUBNORMAL_HALVES})
    try:
        with forced(HALVES):
            _product(trial, 1, 132, 69, "int4", True)
            _product(trial, 1, 132, 69, "int4", True, peak=1e32)  # which one invocation of a workgroup adds up anew
    finally:
        trial.gpu.limits = usual
    return "1,024 numbers in each half"


@probe("packed weights in blocks", "kernels", disables=("interleave_scales.wgsl", "restore_scales.wgsl"))
def in_blocks(trial: Trial) -> str:
    """Scales and zero points for some codes of a row each, block after block and row after row; and the scales back
    again."""
    for (m, k, n, kind, block), transposed in trial.repeated(
        ((1, 132, 136, "int4", 16), (3, 200, 67, "uint8", 32)), (False, True)
    ):
        _product(trial, m, k, n, kind, transposed, back=True, block=block)
    return "blocks of 16 and 32"


@probe("packed weights written out", "kernels", disables=("unpack_product.wgsl", packed_ops.TOGETHER))
def written_out(trial: Trial) -> str:
    """Before a dense product: rows of codes and columns of codes, words of one row and of several, full and others, two
    planes."""
    for _ in range(trial.rounds):
        with forced(packed_ops.BEFORE):
            # one product, of all of them
            shapes = ((17, 96, 68),) if trial.gpu.info.is_software else ((17, 96, 68), (5, 160, 36))
            for kind, transposed, (m, k, n) in trial.some(("int8", "uint4"), (True, False), shapes):
                _product(trial, m, k, n, kind, transposed)
            for bits in (3, 4, 5):
                _decoded(trial, f"Codebook{bits}", 17, stored=(68, 96))
    return "bytes, nibbles, two planes"


@probe(
    "vectors rounded to bytes", "kernels", disables=("quantize_blocks.wgsl", "rounded_product.wgsl", "order_codes.wgsl")
)
def rounded(trial: Trial) -> str:
    """Bytes and nibbles, with zero points and without, blocks of one step and of three, tiles that are full and
    others."""
    for _ in range(trial.rounds):
        with forced(ROUNDED):
            for bits, (m, k, n, block), zeros in trial.some(
                (4, 8), ((5, 64, 9, 32), (131, 100, 66, 32), (66, 192, 65, 96)), (False, True), of=5
            ):
                _rounded(trial, m, k, n, block, bits, zeros)
    return "4 and 8 bits"


@probe("a vector rounded to bytes", "kernels", disables=("rounded_matvecs.wgsl",))
def rounded_vector(trial: Trial) -> str:
    """With zero points and without, in blocks of one unit and of two."""
    for (k, n, block), zeros in trial.repeated(((256, 69, 32), (128, 37, 64)), (False, True), of=2):
        with forced(ROUNDED):
            _rounded(trial, 1, k, n, block, 4, zeros)
    return "4 bits"


@probe("few vectors rounded to bytes", "kernels", disables=("byte_vectors.wgsl", "round_vectors.wgsl"))
def rounded_vectors(trial: Trial) -> str:
    """Three vectors, and more than a workgroup has, with zero points and without, in blocks of one unit and of two."""
    for (m, k, n, block), zeros in trial.repeated(((3, 288, 69, 32), (11, 128, 37, 64)), (False, True), of=2):
        with forced(ROUNDED_BEFORE, ROUNDED):
            _rounded(trial, m, k, n, block, 4, zeros)
    return "4 bits"


def _rounded(trial: Trial, m: int, k: int, n: int, block: int, bits: int, with_zeros: bool) -> None:
    """A MatMulNBits whose x is bytes times a scale, so that rounding changes nothing; and with its k in another order,
    exact."""
    blocks, per = -(-k // block), 8 // bits
    codes, scale = trial.integers(0, 1 << bits, n, blocks * block), abs(trial.normal(n, blocks)) + np.float32(0.1)
    zeros = trial.integers(0, 1 << bits, n, -(-blocks // per) * per)
    steps = trial.integers(-127, 128, m, blocks * block)
    steps[:, ::32] = 127  # of each unit that is rounded by itself
    x = (steps * np.exp2(trial.integers(-3, 4, m, blocks)).repeat(block, 1)).astype(np.float32)[:, :k]
    constants = {"w": pack_codes(codes, bits).reshape(n, blocks, -1), "s": scale}
    constants |= {"z": pack_codes(zeros, bits).reshape(-1)[: zeros.size // per]} if with_zeros else {}
    node = Node(
        "MatMulNBits",
        ("x", *constants),
        ("y",),
        domain="com.microsoft",
        version=1,
        attributes={"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": 4, "weight_prepacked": 0},
    )
    graph = graph_of({"x": x}, constants, node)
    taken = (zeros[:, :blocks] if with_zeros else np.full((n, blocks), 1 << bits - 1)).repeat(block, 1)
    dense = ((codes - taken) * scale.astype(np.float64).repeat(block, 1))[:, :k]
    agree(f"{bits} bits, {m} x {k} x {n}", trial.graph(graph, [x])[0], x.astype(np.float64) @ dense.T)
    index = trial.rng.permutation(np.arange(k) // block).astype(np.int32)
    inputs = ("x", "w", "s", "z" if with_zeros else "", "g")
    sorted_graph = graph_of({"x": x}, {**constants, "g": index}, replace(node, inputs=inputs))
    taken = zeros[:, index] if with_zeros else np.full((n, k), 1 << bits - 1)
    dense = (codes[:, :k] - taken) * scale.astype(np.float64)[:, index]
    order = np.argsort(index, kind="stable")
    stands = x.copy()
    stands[:, order] = x  # in the blocks' order x is what rounding leaves alone
    agree(f"{bits} bits in another order", trial.graph(sorted_graph, [stands])[0], stands.astype(np.float64) @ dense.T)


@probe("packed weights given back", "kernels", disables=("restore_codes.wgsl",))
def given_back(trial: Trial) -> str:
    """Codes that stand on the device only in the order of their product, in the model's own again, bit for bit."""
    products, books = ((131, 136, "int8", False), (531, 67, "int4", True)), ((5, (0, 1)), (3, (1, 0)))
    for (k, n, kind, transposed), (bits, perm) in trial.repeated(products, books, of=3):
        _product(trial, 1, k, n, kind, transposed, back=True)
        _given_back(trial, bits, perm)
    return "bytes, nibbles, two planes"


def _given_back(trial: Trial, bits: int, perm: tuple[int, ...]) -> None:
    """A codebook's codes, which are in two planes on the device."""
    stored = (123, 331)
    codes, values = trial.integers(0, 1 << bits, *stored), trial.normal(1 << bits)
    constants = {"w": pack_codes(codes, bits), "t": values}
    x = trial.normal(1, stored[perm[0]])
    node = Node(
        "PackedMatMul",
        ("x", "w", "t"),
        ("y",),
        domain="ort_gpu_ep",
        version=1,
        attributes={
            "weight_axis": 1,
            "weight_block": 0,
            "weight_bits": bits,
            "weight_shape": stored,
            "weight_perm": perm,
            "weight_sparse": 0,
        },
    )
    graph = graph_of({"x": x}, constants, node)
    agree(f"Codebook{bits} given back", trial.weight(graph, [x], "w"), constants["w"], 0.0)


def _decoded(trial: Trial, op: str, m: int, density: float = 0.2, stored: tuple[int, int] = (37, 67)) -> None:
    """What a function of the model decodes, by itself; and x [m, k] times its transpose, absorbed by the product."""
    values = trial.normal(16 if op == SPARSE else 1 << CODEBOOK[op])
    if op == SPARSE:
        values[0] = 0
        codes = trial.integers(1, 16, *stored) * (trial.rng.random(stored) < density)
        entries, starts = pack_sparse(codes)
        constants = {"w": entries, "t": values, "s": starts}
    else:
        codes = trial.integers(0, len(values), *stored)
        constants = {"w": pack_codes(codes, CODEBOOK[op]), "t": values}
    own: tuple[str, ...] = ("w", "s", "t") if op == SPARSE else ("w", "t")
    fused = ("x", *constants)
    x = trial.normal(m, stored[1])
    form: dict[str, Attribute] = {"size": (codes.size,), "shape": stored, "perm": (1, 0)}
    alone = Node(op, own, ("d",), domain=DOMAIN, version=1, attributes=form)
    agree(f"{op} by itself", trial.graph(graph_of({}, constants, alone), [])[0], values[codes].T, 0.0)
    whole: dict[str, Attribute] = {
        "weight_axis": 1,
        "weight_block": 0,
        "weight_bits": CODEBOOK.get(op, 0),
        "weight_shape": stored,
        "weight_perm": (1, 0),
        "weight_sparse": int(op == SPARSE),
    }
    node = Node("PackedMatMul", fused, ("y",), domain="ort_gpu_ep", version=1, attributes=whole)
    agree(
        f"{op} in a product",
        trial.graph(graph_of({"x": x}, constants, node), [x])[0],
        x.astype(np.float64) @ values[codes].T,
    )


@probe(
    "codebooks",
    "kernels",
    disables=("unpack_codebook.wgsl", "packed_matvec.wgsl", "packed_product.wgsl", "repack.wgsl"),
)
def codebooks(trial: Trial) -> str:
    """Codes within a word, across words, and in two planes."""
    for op, m in trial.repeated((*CODEBOOK,), (2, 17), of=6, turn=1):
        _decoded(trial, op, m)
    for kind, m in trial.some(tuple(BLOCKS_OF_FOUR), (2, 17)):
        _levels(trial, kind, m)
    return ", ".join(CODEBOOK)


def _levels(trial: Trial, kind: int, m: int) -> None:
    """A MatMulBnb4, and its codes given back."""
    n, k, block = 37, 96, 32
    x, codes, scale = (
        trial.normal(m, k),
        trial.integers(0, 16, n * k // 2, 2),
        abs(trial.normal(n * k // block)) + np.float32(0.1),
    )
    constants = {"w": (codes[:, 0] * 16 + codes[:, 1]).astype(np.uint8), "s": scale}
    node = Node(
        "MatMulBnb4",
        ("x", *constants),
        ("y",),
        domain="com.microsoft",
        version=1,
        attributes={"K": k, "N": n, "block_size": block, "quant_type": kind},
    )
    graph = graph_of({"x": x}, constants, node)
    dense = np.array(BLOCKS_OF_FOUR[kind])[codes].reshape(n, k) * scale.astype(np.float64).repeat(block).reshape(n, k)
    agree(f"levels {kind} of {m}", trial.graph(graph, [x])[0], x.astype(np.float64) @ dense.T)
    agree(f"levels {kind} of {m} given back", trial.weight(graph, [x], "w"), constants["w"], 0.0)


@probe("sparse weights with x in workgroup memory", "kernels", disables=(HOLDING,))
def sparse_held(trial: Trial) -> str:
    """Rows that begin and end within words, and that take several rounds of a subgroup."""
    for _ in range(trial.rounds):
        with forced(HELD):
            for ((m, density),) in trial.some(((1, 0.01), (2, 0.2), (1, 1.0)), of=3, turn=1):
                _decoded(trial, SPARSE, m, density, (67, 1500 + m))
    return "densities 0.01, 0.2 and 1"


@probe("sparse weights", "kernels", disables=("unpack_sparse.wgsl", "sparse_matvec.wgsl"))
def sparse(trial: Trial) -> str:
    """Rows of none, few and all of their values."""
    densities = (0.01, 0.2, 1.0)
    for team, density in trial.repeated((*SPARSE_TEAMS,), densities, of=4, turn=1):
        with forced(f"team {team}"):
            _decoded(trial, SPARSE, min(3, team), density)
    return f"densities {densities}"


@probe("pruned weights", "kernels", disables=(pruned_ops.SHADER, pruned_ops.PACKING, pruned_ops.RESTORING))
def pruned(trial: Trial) -> str:
    """Rows and columns of none, few and many values; the matrix back again."""
    for team, transposed in trial.repeated((*SPARSE_TEAMS,), (True, False), of=3):
        with forced(f"team {team}"):
            _pruned(trial, min(3, team) if transposed else 1, (257, 259) if transposed else (262, 251), transposed)
    return f"teams of {', '.join(map(str, SPARSE_TEAMS))}"


def _pruned(trial: Trial, m: int, shape: tuple[int, int], transposed: bool) -> None:
    """x times a matrix with nothing but zeros in its first row and column."""
    w = trial.normal(*shape) * (trial.rng.random(shape) < trial.rng.uniform(0.01, 0.2))
    w[0] = w[:, 0] = 0
    w[1, 1] = 1
    x = trial.normal(m, shape[1] if transposed else shape[0])
    node = Node("Gemm", ("x", "w"), ("y",), version=13, attributes={"transB": int(transposed)})
    graph = graph_of({"x": x}, {"w": w}, node)
    what = f"{m} x {shape[0]} x {shape[1]}"
    agree(what, trial.graph(graph, [x])[0], x.astype(np.float64) @ (w.T if transposed else w))
    agree(f"{what} given back", trial.weight(graph, [x], "w"), w, 0.0)


@probe(
    "sparse products",
    "kernels",
    disables=(sparse_products.SHADER,),
    fault=(r"if \((p\d) < TOTAL && ", r"if (\1 + 1u < TOTAL && "),
)
def sparse_product(trial: Trial) -> str:
    """Convolutions over planes and products of many vectors, of single pixels and of fours, in rows, and in slices."""
    for form, case in trial.repeated(
        ("1 x 1", "1 x 4, 4 slices", "4 x 8"),
        (((2, 64, 6, 6), (70, 64, 1, 1), 0, (1, 1)), ((1, 20, 7, 5), (33, 20, 3, 3), 1, (1, 2))),
        of=3,
        turn=2,
    ):
        with forced(form):
            _convolved(trial, *case)
    return "planes, windows, steps"


@probe("sparse entries of many vectors", "kernels", disables=(sparse_products.PACKING,))
def entries(trial: Trial) -> str:
    """Packed into columns and values: rows of few and of many."""
    for _ in range(trial.rounds):
        with forced("1 x 4"):
            for (density,) in trial.some((0.01, 0.2, 1.0), of=3, turn=1):
                _decoded(trial, SPARSE, 41, density)
    return "densities 0.01, 0.2 and 1"


def _convolved(
    trial: Trial, shape: tuple[int, ...], filters: tuple[int, ...], pad: int = 0, strides: tuple[int, int] = (1, 1)
) -> None:
    """A convolution of one with filters that are mostly zeros, in its first filter nothing else."""
    w, x = trial.normal(*filters) * (trial.rng.random(filters) < 0.15), trial.normal(*shape)
    w[0] = 0
    node = Node("Conv", ("x", "w"), ("y",), version=11, attributes={"pads": (pad,) * 4, "strides": strides})
    (got,) = trial.graph(graph_of({"x": x}, {"w": w}, node), [x])
    padded, want = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad))), np.zeros(got.shape)
    for row, column in np.ndindex(*filters[2:]):
        seen = padded[:, :, row:, column:][:, :, :: strides[0], :: strides[1]][:, :, : got.shape[2], : got.shape[3]]
        want += np.einsum("nchw,mc->nmhw", seen, w[:, :, row, column])
    agree(f"{filters} over {shape}", got, want)


@probe("weights read in place", "packed elements", disables=(INLINED,))
def in_place(trial: Trial) -> str:
    """Rows of a table of bytes and of one of a codebook, as a kernel reads them by whose shader the decoder stands."""
    for _ in range(trial.rounds):
        _picked(trial, "int8", ())
        _picked(trial, "uint4", ())
        for bits in (3, 8):
            _picked(trial, f"Codebook{bits}", (1, 0))
    return "int8, uint4, 3 and 8 bits of a codebook"


@probe("blocks of codes", "kernels", disables=("dequantize_blocks.wgsl",))
def blocks(trial: Trial) -> str:
    """Rows picked from a table, with and without zero points that do not fill their bytes."""
    for _ in range(trial.rounds):
        for bits in (2, 4, 8):
            _rows_of_blocks(trial, bits, trial.rng.random() < 0.5)
            _rows_of_blocks(trial, bits, True)
    return "2, 4 and 8 bits"


def _rows_of_blocks(trial: Trial, bits: int, has_zeros: bool) -> None:
    rows, width, block, per = 29, 80, 16, 8 // bits
    codes, zeros = trial.integers(0, 1 << bits, rows, width), trial.integers(0, 1 << bits, rows, width // block)
    scale, indices = abs(trial.normal(rows, width // block)) + np.float32(0.1), trial.integers(-rows, rows, 17)

    def in_bytes(numbers: Array) -> Array:
        padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % per))).reshape(rows, -1, per)
        array: Array = np.bitwise_or.reduce(padded << np.arange(0, 8, bits), axis=2).astype(np.uint8)
        return array

    constants = {"w": in_bytes(codes), "s": scale, **({"z": in_bytes(zeros)} if has_zeros else {})}
    node = Node(
        "GatherBlockQuantized",
        ("w", "i", *list(constants)[1:]),
        ("y",),
        domain="com.microsoft",
        version=1,
        attributes={"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": bits},
    )
    graph = graph_of({"i": indices}, constants, node)
    zero = zeros if has_zeros else np.full_like(zeros, 1 << bits - 1)
    expected = (codes - np.repeat(zero, block, axis=1)) * np.repeat(scale, block, axis=1)
    agree(f"{bits} bits", trial.graph(graph, [indices])[0], expected[indices])


def _picked(trial: Trial, kind: str, perm: tuple[int, ...]) -> None:
    """Gather of rows that are dequantized with a scale each, or of values of a codebook, stored as columns."""
    rows, width, bits = 37, 67, CODEBOOK.get(kind, 0)
    if bits:
        codes, values = trial.integers(0, 1 << bits, width, rows), trial.normal(1 << bits)
        constants, expected = {"w": pack_codes(codes, bits), "t": values}, values[codes].T
    else:
        dtype = BY_NAME[kind]
        low = -(1 << dtype.bits - 1) if dtype.value == "i32" else 0
        codes, scale = (
            trial.integers(low, low + (1 << dtype.bits), rows, width),
            abs(trial.normal(rows)) + np.float32(0.1),
        )
        constants, expected = {"w": codes.astype(dtype.numpy), "t": scale}, codes * scale[:, None]
    indices = trial.integers(-rows, rows, 19)
    node = Node(
        "PackedGather",
        ("w", "t", "", "i"),
        ("y",),
        domain="ort_gpu_ep",
        version=1,
        attributes={
            "axis": 0,
            "weight_input": 0,
            "op_version": 13,
            "weight_axis": 0,
            "weight_block": 0,
            "weight_bits": bits,
            "weight_sparse": 0,
            "weight_shape": codes.shape if bits else (),
            "weight_perm": perm,
        },
    )
    graph = graph_of({"i": indices}, constants, node)
    agree(f"{kind}, rows picked", trial.graph(graph, [indices])[0], expected[indices])
