"""Arrays and values that a session can't take: it says so, as onnxruntime's own does, and the process goes on.

In a child process: where a string is made in the device's address space, the process ends.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

PROGRAM = """
import json, numpy as np, onnx, onnxruntime, ort_gpu_ep
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import copy_tensors
onnxruntime.set_default_logger_severity(4)
ort_gpu_ep.register()
CPU, OURS = "CPUExecutionProvider", "WgpuExecutionProvider"
def model(text):
    return onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 17]> g ' + text).SerializeToString()
relu = model("(float[n] x) => (float[n] y) { y = Relu(x) }")
texts = model('(float[n] x) => (float[n] y, string[1] t, seq(string[1]) q) '
              '{ y = Relu(x) t = Constant<value_strings = ["many letters, so that they are elsewhere"]>() q = SequenceConstruct(t, t) }')
value = onnxruntime.OrtValue.ortvalue_from_numpy
x = np.array([1.5, -2], "f")
arrays = {
    "objects": np.array([1.5, -2.0], object), "texts": np.array(["a", "b" * 40], object), "unicode": np.array(["a", "b" * 40]),
    "bytes": np.array([b"a", b"b"]), "no objects": np.array([], object), "records": np.zeros(2, [("a", "f4")]), "void": np.zeros(2, "V4"),
    "mixed": np.array([1.5, "a", None], object), "complex": np.zeros(2, "c8"), "dates": np.zeros(2, "M8[s]"), "none": x[:0], "x": x,
    "apart": np.repeat(x, 4)[::4], "turned": x[::-1], "the other ends": np.array(1.5, ">f4"), "no axis": np.array(-2, "f"), "f64": np.zeros(2),
    "read only": np.frombuffer(x.tobytes(), "f"), "one for all": np.broadcast_to(np.float32(-2), (2,))}
def bound(session, bind):
    binding = session.io_binding()
    bind(binding)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]
def vector(session, outputs, a, device):
    given, made = C.OrtValueVector(), C.OrtValueVector()
    given.push_back(value(a)._ortvalue)
    session.run_with_ortvaluevector(onnxruntime.RunOptions(), ["x"], given, outputs, made, [onnxruntime.OrtDevice.make(device, 0)._get_c_device()])
    return onnxruntime.OrtValue(made[0]).numpy()
def updated(a, device):
    made = value(x, device)
    made.update_inplace(a)
    return made.numpy()
ways = {
    "run": lambda s, a, d: s.run(None, {"x": a})[0], "values": lambda s, a, d: s.run_with_ort_values(None, {"x": value(a)})[0].numpy(),
    "vector": lambda s, a, d: vector(s, ["y"], a, "cpu"), "bound": lambda s, a, d: bound(s, lambda b: b.bind_cpu_input("x", a)),
    "bound again": lambda s, a, d: bound(s, lambda b: (b.bind_cpu_input("x", x), b.bind_cpu_input("x", a))),
    "bound value": lambda s, a, d: bound(s, lambda b: b.bind_ortvalue_input("x", value(a))),
    "bound there": lambda s, a, d: bound(s, lambda b: b.bind_ortvalue_input("x", value(a, d))),
    "there": lambda s, a, d: value(a, d).numpy(), "updated": lambda s, a, d: updated(a, d),
    "dlpack": lambda s, a, d: s.run_with_ort_values(None, {"x": onnxruntime.OrtValue.from_dlpack(a)})[0].numpy()}
def told(way):
    try:
        return np.asarray(way()).tolist()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
theirs = onnxruntime.InferenceSession(relu, providers=[CPU])
strings = onnxruntime.InferenceSession(texts, providers=[CPU]).run_with_ort_values(["t", "q"], {"x": value(x)})
ours = {"drop-in": lambda m: ort_gpu_ep.InferenceSession(m, provider_options={"placement": "gpu"}),
        "provider": lambda m: onnxruntime.InferenceSession(m, providers=[OURS, CPU], provider_options=[{"placement": "gpu"}, {}])}
found, refused = {}, {}
for who, opened in ours.items():
    session = opened(relu)
    for name, a in arrays.items():
        for way, how in ways.items():
            found[f"{who}, {name}, {way}"] = told(lambda: how(session, a, "gpu")), told(lambda: how(theirs, a, "cpu"))
    other, there = opened(texts), value(x, "gpu")
    refused[f"{who}, string value"] = told(lambda: bound(session, lambda b: b.bind_ortvalue_input("x", strings[0])))
    for name in ("t", "q"):
        refused[f"{who}, output {name}"] = told(lambda: other.io_binding().bind_output(name, "gpu"))
    refused[f"{who}, copy"] = told(lambda: copy_tensors([strings[0]], [there]))
    refused[f"{who}, copy back"] = told(lambda: copy_tensors([value(x[:1], "gpu")], [strings[0]]))
    refused[f"{who}, copy to less"] = told(lambda: copy_tensors([there], [value(x[:1].copy())]))
    refused[f"{who}, copy to another type"] = told(lambda: copy_tensors([there], [value(x.astype("i4"))]))
refused["drop-in, vector"] = told(lambda: vector(ours["drop-in"](texts), ["q"], x, "gpu"))
print(json.dumps([found, refused]))
"""


def test_what_a_session_can_not_take_is_refused_as_by_onnxruntime(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr[-2000:]
    found, refused = json.loads(done.stdout.splitlines()[-1])
    for case, (got, want) in found.items():
        # a sentence: both refuse it, of the same type where the session looks at the value
        if isinstance(want, str):
            assert isinstance(got, str), case
            assert got.split(":")[0] == want.split(":")[0], (case, got, want)
        else:
            assert got == pytest.approx(want), case
    for case, got in refused.items():
        assert isinstance(got, str), case
        assert "RuntimeError" in got, (case, got)
    assert "input 'x' was given as an array of object" in found["drop-in, objects, bound"][0]
    assert "output 'q' is a seq(tensor(string))" in refused["drop-in, output q"]
    assert "got a source of float32[2] and a target of float32[1]" in refused["provider, copy to less"]
