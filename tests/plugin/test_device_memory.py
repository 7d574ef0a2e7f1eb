"""Device memory through ONNX Runtime: IO binding, values between partitions, copies counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from ort_gpu_ep import plugin
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.runtime.program import Program
from tests.plugin.cases import assert_close, device_value, info, island, make_model, node, open_session, reference

pytestmark = pytest.mark.usefixtures("long_pauses")


def copies(opened: Any) -> tuple[int, int, int]:
    """(host to device, device to host, device to device) since the last call."""
    c = opened.state.copies
    now = (c.host_to_device, c.device_to_host, c.device_to_device)
    before = getattr(opened, "seen", (0, 0, 0))
    opened.seen = now
    return now[0] - before[0], now[1] - before[1], now[2] - before[2]


@pytest.fixture
def doubling() -> bytes:
    return make_model([node("Add", "x x", "y")], [info("x", ["N", 16])], ["y"])


def test_one_copy_each_way(mlp: bytes, rng: np.random.Generator) -> None:
    opened = open_session(mlp)
    copies(opened)
    for _ in range(3):
        opened.run(x=rng.normal(size=(3, 16)).astype("f"))
        assert copies(opened) == (1, 1, 0)
    assert opened.state.copies.host_to_device_nbytes == 3 * 192
    assert opened.state.copies.device_to_host_nbytes == 3 * 192


def test_weights_are_not_copied_by_onnxruntime(rng: np.random.Generator) -> None:
    model = make_model(
        [node("MatMul", "x W", "y")], [info("x", ["N", 256])], ["y"], {"W": rng.normal(size=(256, 256)).astype("f")}
    )
    assert copies(open_session(model)) == (0, 0, 0)


def test_bound_device_values_are_not_copied(doubling: bytes) -> None:
    opened = open_session(doubling)
    a, b = device_value(opened, np.ones((3, 16), "f")), device_value(opened, np.zeros((3, 16), "f"))
    copies(opened)
    for _ in range(10):
        binding = opened.session.io_binding()
        binding.bind_ortvalue_input("x", a)
        binding.bind_ortvalue_output("y", b)
        opened.session.run_with_iobinding(binding)
        a, b = b, a
    assert copies(opened) == (0, 0, 0)
    np.testing.assert_array_equal(a.numpy(), np.full((3, 16), 1024, "f"))


def test_output_in_the_place_of_the_input(doubling: bytes) -> None:
    """A KV cache may be bound as past and present at once."""
    opened = open_session(doubling)
    a = device_value(opened, np.ones((3, 16), "f"))
    for _ in range(5):
        binding = opened.session.io_binding()
        binding.bind_ortvalue_input("x", a)
        binding.bind_ortvalue_output("y", a)
        opened.session.run_with_iobinding(binding)
    np.testing.assert_array_equal(a.numpy(), np.full((3, 16), 32, "f"))
    assert not opened.state.events


def test_the_input_survives_a_failed_run_in_its_place(doubling: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_session(doubling)
    a = device_value(opened, np.ones((3, 16), "f"))
    plain = Program.run

    def run(self: Program, inputs: Any, make_output: Any) -> None:
        plain(self, inputs, make_output)
        raise DeviceError("after everything")

    monkeypatch.setattr(Program, "run", run)
    for _ in range(3):
        binding = opened.session.io_binding()
        binding.bind_ortvalue_input("x", a)
        binding.bind_ortvalue_output("y", a)
        opened.session.run_with_iobinding(binding)
    np.testing.assert_array_equal(a.numpy(), np.full((3, 16), 8, "f"))
    assert opened.state.partitions[0].fallbacks == 3


def test_outputs_that_onnxruntime_allocates_stay_on_the_device(doubling: bytes) -> None:
    opened = open_session(doubling)
    value = device_value(opened, np.ones((3, 16), "f"))
    copies(opened)
    for _ in range(3):
        binding = opened.session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y", "gpu")
        opened.session.run_with_iobinding(binding)
        value = binding.get_outputs()[0]
    assert copies(opened) == (0, 0, 0)
    np.testing.assert_array_equal(value.numpy(), np.full((3, 16), 8, "f"))


def test_cpu_values_can_be_bound(doubling: bytes) -> None:
    opened = open_session(doubling)
    binding = opened.session.io_binding()
    binding.bind_cpu_input("x", np.ones((3, 16), "f"))
    binding.bind_output("y")
    opened.session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], np.full((3, 16), 2, "f"))


def test_shared_device_values(doubling: bytes, rng: np.random.Generator) -> None:
    opened = open_session(doubling)
    x = rng.normal(size=(3, 16)).astype("f")
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu", 0, plugin.VENDOR_ID)
    np.testing.assert_array_equal(value.numpy(), x)
    np.testing.assert_array_equal(opened.session.run_with_ort_values(["y"], {"x": value})[0].numpy(), 2 * x)


def test_device_to_device_copies_do_not_alias(doubling: bytes) -> None:
    opened = open_session(doubling)
    a, b = device_value(opened, np.ones((3, 16), "f")), device_value(opened, np.zeros((3, 16), "f"))
    onnxruntime.copy_tensors([a], [b])
    a.update_inplace(np.full((3, 16), 7, "f"))
    np.testing.assert_array_equal(b.numpy(), np.ones((3, 16), "f"))
    np.testing.assert_array_equal(a.numpy(), np.full((3, 16), 7, "f"))


def test_a_value_that_passes_a_cpu_node_stays_on_the_device(rng: np.random.Generator) -> None:
    model = make_model(
        [node("Add", "x x", "a"), island("a", "i"), node("Mul", "i a", "m"), node("Add", "m a", "y")],
        [info("x", [2, 4, 4])],
        ["y"],
    )
    opened = open_session(model)
    x = rng.normal(size=(2, 4, 4)).astype("f") + 8 * np.eye(4, dtype="f")
    copies(opened)
    assert_close(opened.run(x=x), reference(model, x=x))
    assert copies(opened) == (2, 2, 0)  # x and i go up, a (for the CPU node) and y come down; a itself stays


def test_memory_patterns(rng: np.random.Generator) -> None:
    """With static shapes ONNX Runtime puts many tensors into one block, and passes addresses inside it."""
    nodes, last = [], "x"
    for i in range(4):
        nodes += [node("Mul", f"{last} w", f"a{i}"), node("Add", f"a{i} x", f"b{i}"), island(f"b{i}", f"i{i}")]
        last = f"i{i}"
    model = make_model([*nodes, node("Add", f"{last} b0", "y")], [info("x", [2, 4, 4])], ["y"], {"w": np.float32(0.5)})
    x = rng.normal(size=(2, 4, 4)).astype("f") + 8 * np.eye(4, dtype="f")
    opened, expected = open_session(model), reference(model, x=x)
    for _ in range(4):
        assert_close(opened.run(x=x), expected)
    assert not opened.state.events


def test_steady_state_allocates_nothing(mlp: bytes, rng: np.random.Generator) -> None:
    opened = open_session(mlp)
    x, gpu = rng.normal(size=(3, 16)).astype("f"), opened.state.gpu
    assert gpu is not None
    for _ in range(3):
        opened.run(x=x)
    before = gpu.stats.buffers
    for _ in range(20):
        opened.run(x=x)
    assert gpu.stats.buffers == before


def test_sessions_give_everything_back(mlp: bytes, rng: np.random.Generator) -> None:
    def held() -> tuple[int, int]:
        stats = Gpu.open(opened.state.config or pytest.fail("no config")).stats
        return len(memory._blocks), stats.allocated_nbytes - stats.pooled_nbytes

    opened = open_session(mlp)
    opened.run(x=rng.normal(size=(3, 16)).astype("f"))
    opened.session = None
    before = held()
    for _ in range(3):
        other = open_session(mlp)
        other.run(x=rng.normal(size=(5, 16)).astype("f"))
        other.session = None
    assert held() == before


def used(opened: Any, shape: tuple[int, ...]) -> None:
    """Memory of this size that was written, and is free now."""
    values = [device_value(opened, np.full(shape, np.nan, "f")) for _ in range(12)]
    for value in values:
        binding = opened.session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y")
        opened.session.run_with_iobinding(binding)


def new_value(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, dtype, "gpu", 0, plugin.VENDOR_ID)


def test_what_nobody_wrote_is_zero(doubling: bytes) -> None:
    """Whatever the memory held before: a program may read rows of a cache before they are written."""
    opened, shape = open_session(doubling), (7, 16)
    used(opened, shape)
    new = new_value(shape)
    binding = opened.session.io_binding()
    binding.bind_ortvalue_input("x", new)
    binding.bind_ortvalue_output("y", copy := new_value(shape))
    opened.session.run_with_iobinding(binding)
    for value in (new, copy):
        np.testing.assert_array_equal(value.numpy(), np.zeros(shape, "f"))


@pytest.mark.parametrize("bits", [0, 8, 4])
def test_a_conversation_that_leaves_out_a_row_of_its_cache_is_answered_as_by_the_cpu(
    bits: int, doubling: bytes, rng: np.random.Generator
) -> None:
    """As onnxruntime-genai's are: it appends to an answer whose last token it has not fed. bits: of a code in the
    cache, 0 for numbers."""
    heads, groups, size, rows = 4, 2, 16, 24
    dtype, stored = {0: ("f", size), 8: ("i1", size), 4: ("u1", size // 2)}[bits]
    cache, kind = ["B", groups, "past", stored], helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    scales = {n: rng.uniform(1, 3, (1, groups, 1, size)).astype("f") / 2**bits for n in ("ks", "vs")} if bits else {}
    quantized = {"kv_cache_bit_width": bits, "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
    model = make_model(
        [
            helper.make_node(
                "GroupQueryAttention",
                ["q", "", "", "pk", "pv", "l", "t", *([""] * 5 if bits else []), *scales],
                ["y", "nk", "nv"],
                domain="com.microsoft",
                num_heads=heads,
                kv_num_heads=groups,
                **(quantized if bits else {}),
            )
        ],
        [
            info("q", [1, "s", (heads + 2 * groups) * size]),
            info("pk", cache, kind),
            info("pv", cache, kind),
            info("l", [1], 6),
            info("t", [1], 6),
        ],
        [info("y", [1, "s", heads * size]), info("nk", cache, kind), info("nv", cache, kind)],
        scales,
    )
    steps = [
        (rng.standard_normal((1, s, (heads + 2 * groups) * size)).astype("f"), total)
        for s, total in ((3, 3), (1, 4), (2, 7), (1, 8))
    ]
    opened = open_session(doubling)  # as long as it is open, its device has the memory
    used(opened, (groups * rows, size))

    def answers(session: Any, caches: dict[str, Any]) -> list[Any]:
        found = []
        for q, total in steps:
            binding = session.io_binding()
            for name, array in (("q", q), ("l", np.array([total - 1], "i4")), ("t", np.array([total], "i4"))):
                binding.bind_cpu_input(name, array)
            binding.bind_output("y")
            for past, present in (("pk", "nk"), ("pv", "nv")):
                binding.bind_ortvalue_input(past, caches[past])
                binding.bind_ortvalue_output(present, caches[past])
            session.run_with_iobinding(binding)
            found.append(binding.copy_outputs_to_cpu()[0])
        return [*found, *(np.array(c.numpy()) for c in caches.values())]

    shape = (1, groups, rows, stored)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    zeros = {n: np.zeros(shape, dtype) for n in ("pk", "pv")}
    wanted = answers(theirs, {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in zeros.items()})
    ours = open_session(model, strict=1)
    values = {n: new_value(shape, np.dtype(dtype).type) for n in ("pk", "pv")}
    for got, want in zip(answers(ours.session, values), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
