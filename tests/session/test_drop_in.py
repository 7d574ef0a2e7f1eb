"""The session is onnxruntime's: same arguments, same answers, same exceptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

import ort_gpu_ep as ort
from ort_gpu_ep.errors import AdapterError, ConfigError
from tests.session.conftest import NODES, assert_close, gpu_session, on_the_cpu

Array = np.ndarray[Any, Any]
CPU = "CPUExecutionProvider"


def test_it_is_a_session(mlp: bytes) -> None:
    session = gpu_session(mlp)
    assert isinstance(session, onnxruntime.InferenceSession)
    assert session.get_providers() == [ort.EP_NAME, CPU]
    assert session.get_provider_options()[ort.EP_NAME]["placement"] == "gpu"
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [o.shape for o in session.get_outputs()] == [["N", 8], ["N"]]


def test_other_names_of_onnxruntime_are_reachable() -> None:
    assert ort.SessionOptions is onnxruntime.SessionOptions
    assert ort.OrtValue is onnxruntime.OrtValue
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ort.nonsense


@pytest.mark.parametrize("how", ["bytes", "str", "path"])
def test_where_a_model_comes_from(how: str, mlp: bytes, x: Array, tmp_path: Path) -> None:
    path = tmp_path / "a model.onnx"
    path.write_bytes(mlp)
    session = gpu_session({"bytes": mlp, "str": str(path), "path": path}[how])
    assert session.explain().count("cpu") == 0
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_external_data(mlp: bytes, x: Array, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(
        onnx.load_from_string(mlp), path, save_as_external_data=True, location="weights.bin", size_threshold=100
    )
    assert (tmp_path / "weights.bin").stat().st_size >= 16 * 8 * 4
    session = gpu_session(str(path))
    assert session.explain().count("gpu") == NODES
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


@pytest.mark.parametrize(
    "providers",
    [[ort.EP_NAME, CPU], [(ort.EP_NAME, {"placement": "gpu"}), CPU], [(ort.EP_NAME, {"placement": "gpu"}), (CPU, {})]],
)
def test_providers(providers: list[Any], mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GPU_EP_PLACEMENT", "gpu")
    session = ort.InferenceSession(mlp, providers=providers)
    assert session.get_providers() == [ort.EP_NAME, CPU]
    assert session.explain().count("gpu") == NODES
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_provider_options_in_step_with_providers(mlp: bytes) -> None:
    session = ort.InferenceSession(mlp, providers=[ort.EP_NAME, CPU], provider_options=[{"placement": "gpu"}, {}])
    assert session.explain().count("gpu") == NODES


def test_only_the_cpu(mlp: bytes, x: Array) -> None:
    session = ort.InferenceSession(mlp, providers=[CPU])
    assert session.get_providers() == [CPU]
    assert "does not use this provider" in str(session.explain())
    assert "nodes: none was shown to this provider" in str(session.explain())
    assert session.stats() == {"fallbacks": 0, "renewals": 0}
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_session_options_are_used(mlp: bytes, tmp_path: Path) -> None:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.enable_profiling = True
    settings.profile_file_prefix = str(tmp_path / "profile")
    session = gpu_session(mlp, settings)
    assert Path(session.end_profiling()).is_file()


def test_no_fallback_to_the_cpu_provider(mlp: bytes, island: bytes, x: Array) -> None:
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = gpu_session(mlp, settings)
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    with pytest.raises(ort_errors.Fail, match="fallback"):
        gpu_session(island, settings)


def test_a_subset_of_outputs_in_any_order(mlp: bytes, x: Array) -> None:
    session = gpu_session(mlp)
    y, z = on_the_cpu(mlp, {"x": x})
    assert_close(session.run(["z"], {"x": x}), [z])
    assert_close(session.run(["z", "y"], {"x": x}), [z, y])
    assert_close(session.run([], {"x": x}), [y, z])


def test_run_options(mlp: bytes, x: Array) -> None:
    session = gpu_session(mlp)
    settings = onnxruntime.RunOptions()
    settings.logid = "a run"
    assert_close(session.run(None, {"x": x}, settings), on_the_cpu(mlp, {"x": x}))
    settings.terminate = True
    with pytest.raises(Exception, match="terminate"):
        session.run(None, {"x": x}, settings)
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_io_binding(mlp: bytes, x: Array) -> None:
    session = gpu_session(mlp)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_output("z", "gpu")
    session.run_with_iobinding(binding)
    want = on_the_cpu(mlp, {"x": x})
    assert_close([binding.get_outputs()[0].numpy()], want[:1])
    assert binding.get_outputs()[1].device_name() != "cpu"
    assert_close(binding.copy_outputs_to_cpu(), want)


def test_ort_values(mlp: bytes, x: Array) -> None:
    got = gpu_session(mlp).run_with_ort_values(["y"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})
    assert_close([g.numpy() for g in got], on_the_cpu(mlp, {"x": x}, ["y"]))


@pytest.mark.parametrize(
    "feeds",
    [
        {"nonsense": np.ones((5, 16), "f")},
        {},
        {"x": np.ones((5, 17), "f")},
        {"x": np.ones(16, "f")},
        {"x": np.ones((5, 16))},
    ],
    ids=["name", "nothing", "shape", "rank", "dtype"],
)
def test_wrong_inputs_raise_what_onnxruntime_raises(feeds: dict[str, Array], mlp: bytes, x: Array) -> None:
    plain = onnxruntime.InferenceSession(mlp, providers=[CPU])
    with pytest.raises(Exception, match=r"\w") as want:
        plain.run(None, feeds)
    session = gpu_session(mlp)
    with pytest.raises(type(want.value)) as got:
        session.run(None, feeds)
    assert str(got.value) == str(want.value)
    assert not session.explain().events
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_an_unknown_output_raises_what_onnxruntime_raises(mlp: bytes, x: Array) -> None:
    session = gpu_session(mlp)
    with pytest.raises(ort_errors.InvalidArgument, match="nonsense"):
        session.run(["nonsense"], {"x": x})
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


@pytest.mark.parametrize("content", [None, b"", b"this is no protobuf"])
def test_a_broken_or_missing_file_raises_what_onnxruntime_raises(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Exception, match=r"\w") as want:
        onnxruntime.InferenceSession(str(path), providers=[CPU])
    with pytest.raises(type(want.value)) as got:
        ort.InferenceSession(str(path))
    assert str(got.value) == str(want.value)


def test_a_model_that_onnxruntime_rejects(mlp: bytes) -> None:
    model = onnx.load_from_string(mlp)
    model.graph.node[0].op_type = "NoSuchOp"
    with pytest.raises(ort_errors.InvalidGraph, match="NoSuchOp"):
        gpu_session(model.SerializeToString())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placment": "gpu"}, "did you mean 'placement'"),
        ({"placement": "tpu"}, "expected one of auto, gpu, cpu"),
        ({"memory_limit_mb": "lots"}, "whole number"),
    ],
)
def test_wrong_options(options: dict[str, str], message: str, mlp: bytes) -> None:
    with pytest.raises(ConfigError, match=message):
        ort.InferenceSession(mlp, provider_options=options)
    with pytest.raises(ConfigError, match=message):
        ort.InferenceSession(mlp, providers=[(ort.EP_NAME, options), CPU])


def test_wrong_environment(mlp: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GPU_EP_FUSION", "maybe")
    with pytest.raises(ConfigError, match=r"environment variable ORT_GPU_EP_FUSION: got 'maybe'"):
        ort.InferenceSession(mlp)


def test_an_adapter_that_is_not_there(mlp: bytes) -> None:
    with pytest.raises(AdapterError, match=r"adapter='Voodoo': no such adapter; there are: 0: ") as caught:
        gpu_session(mlp, adapter="Voodoo")
    for info in ort.adapters():
        assert info.name in str(caught.value)


def test_adapters_by_index_type_and_name(mlp: bytes) -> None:
    info = ort.adapters()[-1]
    for wanted in (info.index, info.type, info.name[:6].upper()):
        assert gpu_session(mlp, adapter=wanted).explain().adapter.startswith(info.name)


def test_under_onnxruntimes_own_name(mlp: bytes, x: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose onnxruntime.InferenceSession is ours: what we make of onnxruntime's must not be ours again."""
    want = on_the_cpu(mlp, {"x": x})
    monkeypatch.setattr(onnxruntime, "InferenceSession", ort.InferenceSession)
    options = {"adapter": "0", "cache_dir": str(tmp_path), "load": "off"}
    for placement in ("auto", "gpu", "cpu"):
        session = onnxruntime.InferenceSession(mlp, provider_options={**options, "placement": placement})
        assert session.wait_ready(300.0)
        for _ in range(2):
            assert_close(session.run(None, {"x": x}), want)
        assert session.explain().reports
        assert_close(session._cpu_session().run(None, {"x": x}), want)
