"""What goes wrong: options, adapters, exceptions in each callback. Process and session survive, and everything is on
record."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep
from ort_gpu_ep import plugin
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import (
    AdapterError,
    Code,
    ConfigError,
    DeviceError,
    DeviceLostError,
    InternalError,
    OutOfDeviceMemoryError,
    UnsupportedNodeError,
)
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.partitioner import costs
from ort_gpu_ep.plugin import local, ort_sessions, plain, provider
from ort_gpu_ep.plugin.explain import explanation
from ort_gpu_ep.runtime.program import Program
from tests.plugin.cases import assert_close, info, make_model, node, open_session, raises, reference
from tests.unit.graphs import model_of

pytestmark = pytest.mark.usefixtures("long_pauses")


class Boom(Exception):
    """Stands for a bug."""


def captured(model: bytes, **options: object) -> tuple[Any, plugin.SessionState, BaseException | None]:
    """(session, state, exception) of a session selected by device, with no second try on the CPU."""
    chosen = onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == plugin.EP_NAME]
    chosen.add_provider_for_devices(devices, {"placement": "gpu"} | {k: str(v) for k, v in options.items()})
    with plugin.capture() as seen:
        try:
            session, error = onnxruntime.InferenceSession(model, chosen, enable_fallback=0), None
        except Exception as caught:
            session, error = None, caught
    (state,) = seen
    return session, state, error


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.normal(size=(3, 16)).astype("f")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"placment": "gpu"}, "did you mean 'placement'"),
        ({"placement": "moon"}, "expected one of auto, gpu, cpu"),
        ({"memory_limit_mb": "many"}, "expected a whole number"),
    ],
)
def test_wrong_options_are_errors(mlp: bytes, options: dict[str, str], words: str) -> None:
    session, state, error = captured(mlp, **options)
    assert session is None
    assert error is not None
    assert words in str(error)
    cause = state.cause_of(error)
    assert isinstance(cause, ConfigError)
    assert words in str(cause)
    assert state.config is None


def test_options_reach_the_config(mlp: bytes, tmp_path: Any) -> None:
    state = open_session(mlp, placement="cpu", strict=1, memory_limit_mb=0, cache_dir=str(tmp_path)).state
    assert state.options == {"placement": "cpu", "strict": "1", "memory_limit_mb": "0", "cache_dir": str(tmp_path)}
    assert state.config is not None
    assert (state.config.placement, state.config.strict, state.config.cache_path) == ("cpu", True, str(tmp_path))
    assert state.gpu is None


def test_placement_cpu_is_reported_and_runs(mlp: bytes, x: Any) -> None:
    opened = open_session(mlp, placement="cpu")
    assert not opened.state.partitions
    assert [n.device for r in opened.state.reports for n in r.nodes] == ["cpu"] * 3
    assert_close(opened.run(x=x), reference(mlp, x=x))


def test_no_adapter_means_cpu(mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "open", raises(AdapterError("no adapter")))
    opened = open_session(mlp)
    assert isinstance(opened.state.errors[0], AdapterError)
    assert not opened.state.partitions
    assert_close(opened.run(x=x), reference(mlp, x=x))


def test_no_adapter_in_strict_mode_is_an_error(mlp: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "open", raises(AdapterError("no adapter")))
    session, state, error = captured(mlp, strict=1)
    assert session is None
    assert error is not None
    assert isinstance(state.cause_of(error), AdapterError)


def test_create_ep_by_name_is_recorded(mlp: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime's Python layer prints the error and retries without us; the record is how a session class finds
    out."""
    with plugin.capture() as seen:
        session = onnxruntime.InferenceSession(
            mlp, providers=[(plugin.EP_NAME, {"placement": "moon"}), "CPUExecutionProvider"]
        )
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert isinstance(seen[0].errors[0], ConfigError)
    assert "moon" in capfd.readouterr().out


def test_get_capability(mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "partition", raises(Boom("capability")))
    opened = open_session(mlp)
    assert [str(e) for e in opened.state.errors] == ["capability"]
    assert opened.state.events[0].where == "GetCapability"
    assert not opened.state.partitions
    assert_close(opened.run(x=x), reference(mlp, x=x))


def test_a_price_that_fails_is_an_event_and_the_model_stays(
    mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """placement=auto prices each node; GetCapability once lost the whole model to one of them."""
    boom = Boom("priced")
    monkeypatch.setitem(RECORDS, "elementwise.wgsl", replace(RECORDS["elementwise.wgsl"], flops=raises(boom)))
    monkeypatch.setattr(costs, "CPU_FLOPS", 1.0)  # a product is worth the trip to any GPU
    opened = open_session(mlp, placement="auto", adapter="software", fusion=0)
    devices = {n.op: (n.device, n.reason) for r in opened.state.reports for n in r.nodes}
    assert devices["MatMul"] == ("gpu", "")
    assert devices["Relu"] == ("cpu", "its time can't be predicted: Boom: priced")
    assert any("Boom: priced" in e for e in explanation(opened.state).events)
    assert_close(opened.run(x=x), reference(mlp, x=x))
    boom.__traceback__ = None


def test_compile_falls_back(mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LocalProgram", raises(Boom("compile")))
    opened = open_session(mlp)
    assert "compile" in opened.state.events[0].message
    assert_close(opened.run(x=x), reference(mlp, x=x))
    assert opened.state.partitions[0].fallbacks == 1


def test_a_warning_names_the_partition_as_explain_does(mlp: bytes, x: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ort_gpu_ep"):
        opened = open_session(mlp, faults="compile@1")
        opened.run(x=x)
        event = opened.state.events[0]
        opened.state.record("error", event.where, event.message)
    assert sum(m.startswith("partition 0: ") for m in caplog.messages) == 1, caplog.messages
    assert not any("WgpuExecutionProvider_" in m for m in caplog.messages), caplog.messages
    assert "in partition 0" in str(explanation(opened.state))


def test_compile_in_strict_mode_is_an_error(mlp: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    boom = Boom("compile")
    monkeypatch.setattr(local, "LocalProgram", raises(boom))
    gc.collect()  # what earlier sessions left
    before = plugin.live_tables()
    session, state, error = captured(mlp, strict=1)
    assert session is None
    assert error is not None
    assert state.cause_of(error) is boom
    error.__traceback__ = None
    gc.collect()
    assert plugin.live_tables() == before


DECLINED = UnsupportedNodeError(Code.LIMIT, "large")
FAILURES = [Boom("bug"), DeviceError("driver"), OutOfDeviceMemoryError("full"), DECLINED, InternalError("rule")]


@pytest.mark.parametrize("error", FAILURES, ids=lambda e: type(e).__name__)
def test_compute_falls_back(
    mlp: bytes, x: Any, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_session(mlp)
    monkeypatch.setattr(Program, "run", raises(error))
    with caplog.at_level(logging.WARNING, "ort_gpu_ep"):
        for _ in range(3):
            assert_close(opened.run(x=x), reference(mlp, x=x))
    trips = [r for r in caplog.records if "left alone" in r.getMessage()]
    assert len(caplog.records) - len(trips) == 1
    assert len(trips) == isinstance(error, DeviceError)
    assert [e.kind for e in opened.state.events] == ["fallback"] * 3
    assert opened.state.errors[0] is error
    assert error.__traceback__ is None
    monkeypatch.undo()
    assert opened.state.gpu.circuit.is_closed  # type: ignore[union-attr]
    opened.state.partitions[0].circuit.reset()
    assert_close(opened.run(x=x), reference(mlp, x=x))
    assert (opened.state.partitions[0].runs, opened.state.partitions[0].fallbacks) == (4, 3)


def test_compute_falls_back_after_its_outputs_were_made(mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_session(mlp)

    def run(self: Program, inputs: Any, make_output: Any, read: Any) -> None:
        make_output(0, (3, 16))
        raise DeviceError("late")

    monkeypatch.setattr(Program, "run", run)
    assert_close(opened.run(x=x), reference(mlp, x=x))


@pytest.mark.parametrize("error", [Boom("bug"), DeviceError("driver")], ids=lambda e: type(e).__name__)
def test_compute_in_strict_mode_raises(mlp: bytes, x: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_session(mlp, strict=1)
    monkeypatch.setattr(Program, "run", raises(error))
    with pytest.raises(Exception, match=str(error)) as caught:
        opened.run(x=x)
    assert opened.state.cause_of(caught.value) is error
    monkeypatch.undo()
    assert_close(opened.run(x=x), reference(mlp, x=x))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda e: type(e).__name__)
def test_what_is_no_exception_is_not_swallowed(
    mlp: bytes, x: Any, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_session(mlp)
    monkeypatch.setattr(Program, "run", raises(error))
    with pytest.raises(Exception, match=type(error).__name__) as caught:
        opened.run(x=x)
    assert opened.state.cause_of(caught.value) is error
    monkeypatch.undo()
    assert_close(opened.run(x=x), reference(mlp, x=x))


def test_uploads_that_fail_leave_the_input_to_the_cpu(mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_session(mlp)
    monkeypatch.setattr(Gpu, "upload", raises(DeviceError("lost")))
    monkeypatch.setattr(Program, "run", raises(DeviceError("lost")))
    assert_close(opened.run(x=x), reference(mlp, x=x))
    monkeypatch.undo()
    assert_close(opened.run(x=x), reference(mlp, x=x))


def test_runs_after_the_device_was_lost(mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the old session and a new one get a new device, once the adapter is trusted again."""
    opened = open_session(mlp)
    assert_close(opened.run(x=x), reference(mlp, x=x))
    monkeypatch.setattr(opened.state.gpu, "lost", "unplugged")
    for _ in range(3):
        assert_close(opened.run(x=x), reference(mlp, x=x))
    assert opened.state.partitions[0].fallbacks == 3
    assert all(isinstance(e, DeviceLostError) for e in opened.state.errors)
    assert opened.state.gpu.circuit.state == "open"
    opened.state.gpu.circuit.reset()
    other = open_session(mlp)
    assert other.state.gpu is not opened.state.gpu
    assert_close(other.run(x=x), reference(mlp, x=x))
    assert other.state.partitions[0].fallbacks == 0


def test_a_lost_device_in_the_middle(mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the result back fails: that run is an error, not a wrong answer, and the next one works."""
    opened = open_session(mlp)
    monkeypatch.setattr(Gpu, "lend", raises(DeviceError("lost")))
    with pytest.raises(Exception, match="lost") as caught:
        opened.run(x=x)
    assert isinstance(opened.state.cause_of(caught.value), DeviceError)
    monkeypatch.undo()
    assert_close(opened.run(x=x), reference(mlp, x=x))


def test_errors_keep_no_frames(mlp: bytes, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Witness:
        pass

    def run(self: Program, inputs: Any, make_output: Any, read: Any) -> None:
        witness = Witness()
        watched.append(weakref.ref(witness))
        raise DeviceError("x")

    watched: list[Any] = []
    opened = open_session(mlp)
    monkeypatch.setattr(Program, "run", run)
    opened.run(x=x)
    assert opened.state.errors
    assert watched[0]() is None


@pytest.mark.parametrize("nbytes", [4096, 1 << 20])
def test_fallback_has_the_weights(
    nbytes: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    n = nbytes // 4 // 64
    model = make_model(
        [node("MatMul", "x W", "h"), node("Add", "h b", "y")],
        [info("x", ["N", 64])],
        ["y"],
        {"W": rng.normal(size=(64, n)).astype("f"), "b": rng.normal(size=n).astype("f")},
    )
    opened = open_session(model, cache_dir=str(tmp_path))
    stored = list(tmp_path.glob("weights/*/*.bin"))
    assert len(stored) == (nbytes > 64 << 10)
    monkeypatch.setattr(Program, "run", raises(DeviceError("x")))
    x = rng.normal(size=(2, 64)).astype("f")
    assert_close(opened.run(x=x), reference(model, x=x))
    opened.session = None
    assert not list(tmp_path.glob("weights/*/*.bin"))


def test_fallback_without_a_disk(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    model = make_model(
        [node("MatMul", "x W", "y")], [info("x", ["N", 256])], ["y"], {"W": rng.normal(size=(256, 256)).astype("f")}
    )
    (tmp_path / "weights").write_text("in the way")
    opened = open_session(model, cache_dir=str(tmp_path))
    assert any("stay in memory" in e.message for e in opened.state.events)
    monkeypatch.setattr(Program, "run", raises(DeviceError("x")))
    x = rng.normal(size=(2, 256)).astype("f")
    assert_close(opened.run(x=x), reference(model, x=x))


def test_fallback_with_attributes_of_every_kind(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(
        [
            node("Conv", "x w", "c", auto_pad="SAME_UPPER", strides=[2, 1], group=1),
            node("LeakyRelu", "c", "l", alpha=0.3),
            node("Unsqueeze", "l axes", "u"),
            node("Squeeze", "u axes", "s"),
            node("Transpose", "s", "t", perm=[0, 2, 3, 1]),
            node("Cast", "t", "i", to=7),
            node("Cast", "i", "z", to=1),
        ],
        [info("x", [1, 3, 8, 9])],
        ["l", "z"],
        {"w": rng.normal(size=(4, 3, 3, 3)).astype("f"), "axes": np.array([1])},
    )
    monkeypatch.setattr(Program, "run", raises(DeviceError("x")))
    opened = open_session(model)
    x = rng.normal(size=(1, 3, 8, 9)).astype("f")
    assert_close(opened.run(x=x), reference(model, x=x))


EMPTIED = """
import sys
import numpy as np
from onnx import helper, numpy_helper
import ort_gpu_ep
from tests.plugin.cases import info
weights = numpy_helper.from_array(np.ones((32, 16, 1, 1), "f"), "w")
nodes = [helper.make_node(sys.argv[1], ["x"], ["p"], kernel_shape=[2, 2]), helper.make_node("Conv", ["p", "w"], ["y"])]
graph = helper.make_graph(nodes, "g", [info("x", (1, 16, "h", "w"))], [helper.make_empty_tensor_value_info("y")], [weights])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
session = ort_gpu_ep.InferenceSession(model.SerializeToString(), provider_options={"placement": "gpu", "isolation": sys.argv[2]})
for size in (1, 4):
    try:
        print(session.run(None, {"x": np.ones((1, 16, size, size), "f")})[0].mean())
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("pool", ["AveragePool", "MaxPool"])
def test_images_that_a_pooling_empties_end_no_process(pool: str, isolation: str) -> None:
    """onnxruntime's own optimised kernel divides by zero there, which ends the process: the partition is left to
    another one."""
    done = subprocess.run([sys.executable, "-c", EMPTIED, pool, isolation], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "InvalidArgument\n16.0\n"), done.stderr


LEFT = """
import sys
import numpy as np
import onnxruntime
from onnx import parser
import ort_gpu_ep
onnxruntime.set_default_logger_severity(4)
POOL = 'MaxPool<kernel_shape = [2, 2], auto_pad = "SAME_UPPER", dilations = [2, 2]>'
models = {
    "alone": f"{{ a = Relu(x) b = {POOL}(a) y = Relu(b) }}",
    "body": f"{{ a = Relu(x) y = If(c) <then_branch = t () => (u) {{ q = {POOL}(a) u = Relu(q) }}, else_branch = e () => (v) {{ v = Neg(a) }}> }}"}
x = np.ones((1, 16, 1, 1), "f")
for name, text in models.items():
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g (float[N, 16, H, W] x, bool[1] c) => (float[N, 16, P, Q] y) {text}')
    options = {"placement": "gpu", **dict(option.split("=") for option in sys.argv[1:])}
    session = ort_gpu_ep.InferenceSession(model.SerializeToString(), provider_options=options)
    left = [n.op for report in session.explain().reports for n in report.nodes if n.device == "cpu"]
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("c", np.array([True]))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    session.set_providers(["WgpuExecutionProvider", "CPUExecutionProvider"], [options, {}])
    shapes = [session.run(None, {"x": x, "c": np.array([True])})[0].shape, binding.copy_outputs_to_cpu()[0].shape]
    print(name, "MaxPool" in left, *shapes)
"""


@pytest.mark.parametrize("options", [["strict=1"], ["isolation=process"]])
def test_images_that_a_pooling_of_the_cpu_empties_end_no_process(options: list[str]) -> None:
    """Nodes that no partition has are in the user's own session."""
    done = subprocess.run([sys.executable, "-c", LEFT, *options], capture_output=True, text=True, timeout=300)
    want = "".join(f"{name} True (1, 16, 0, 0) (1, 16, 0, 0)\n" for name in ("alone", "body"))
    assert (done.returncode, done.stdout) == (0, want), done.stderr


def made_with(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The optimisers that each session of onnxruntime's class is made without, from now on."""
    found, init = list[Any](), plain.OrtSession.__init__

    def told(self: Any, *arguments: Any, **named: Any) -> None:
        found.append(sorted(named.get("disabled_optimizers") or ()))
        init(self, *arguments, **named)

    monkeypatch.setattr(plain.OrtSession, "__init__", told)
    monkeypatch.setattr(ort_sessions, "_init", told)
    return found


POOLED = "{ a = Relu(x) y = AveragePool<kernel_shape = [2, 2]>(a) }"


@pytest.mark.parametrize(("shape", "without"), [("N, 16, 8, 8", [[], []]), ("N, 16, H, W", [[], ["NchwcTransformer"]])])
def test_the_cpu_keeps_its_fast_pooling_where_no_run_can_empty_it(
    shape: str, without: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second session is the fallback's; a pooling on the GPU costs the user's own session nothing."""
    model = model_of(f"(float[{shape}] x) => (float[N, 16, P, Q] y) {POOLED}")
    found, x = made_with(monkeypatch), np.ones((1, 16, 8, 8), "f")
    monkeypatch.setattr(Program, "run", raises(DeviceError("x")))
    session = ort_gpu_ep.InferenceSession(model.SerializeToString(), provider_options={"placement": "gpu"})
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[..., 1:, 1:])
    assert found == without


def test_optimisers_that_a_program_does_without_stay_away(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(
        "(float[N, 16, H, W] x) => (float[N, 16, P, Q] y) "
        '{ a = Relu(x) y = MaxPool<kernel_shape = [2, 2], auto_pad = "SAME_UPPER", dilations = [2, 2]>(a) }'
    )
    found = made_with(monkeypatch)
    ort_gpu_ep.InferenceSession(
        model.SerializeToString(), provider_options={"placement": "gpu"}, disabled_optimizers=["MatMulAddFusion"]
    )
    assert found == [["MatMulAddFusion"], ["MatMulAddFusion", "NchwcTransformer"]]
