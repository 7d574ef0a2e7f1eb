"""Registration, the end of the interpreter, and forks: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

Python = Callable[..., subprocess.CompletedProcess[str]]

SETUP = """
rng = np.random.default_rng(0)
model = make_model([node("MatMul", "x W", "h"), node("Relu", "h", "y")], [info("x", ["N", 16])], ["y"], {"W": np.eye(16, dtype="f")})
x = rng.normal(size=(3, 16)).astype("f")
expected = np.maximum(x, 0)
"""
OPEN = (
    SETUP
    + """
plugin.register()
opened = open_session(model)
np.testing.assert_allclose(opened.run(x=x)[0], expected, rtol=1e-5)
"""
)

ENDINGS = {
    "clean": (
        "del opened; gc.collect(); plugin.unregister(); assert not plugin.live_tables(), plugin.live_tables()",
        0,
    ),
    "closed session": ("del opened", 0),
    "live session": ("", 0),
    "session in a cycle": (
        """
        class Cycle: pass
        a = Cycle(); a.me, a.opened = a, opened; del opened
    """,
        0,
    ),
    "live device values": (
        """
        value = device_value(opened, x)
        shared = onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu", 0, plugin.VENDOR_ID)
        binding = opened.session.io_binding(); binding.bind_ortvalue_input("x", value); binding.bind_output("y", "gpu")
        opened.session.run_with_iobinding(binding)
    """,
        0,
    ),
    "daemon threads": (
        """
        def work():
            while True: opened.run(x=x)
        for _ in range(3): threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """,
        0,
    ),
    "a daemon thread in a long run": (
        """
        from ort_gpu_ep.runtime.program import Program
        plain = Program.run
        def slow(self, *a): time.sleep(1); plain(self, *a)
        Program.run = slow
        threading.Thread(target=lambda: opened.run(x=x), daemon=True).start()
        time.sleep(0.2)
    """,
        0,
    ),
    "sys.exit": ("sys.exit(5)", 5),
    "an exception": ("raise RuntimeError('of the user')", 1),
    "re-registered": (
        """
        del opened; gc.collect()
        for _ in range(3):
            plugin.unregister(); plugin.unregister()
            assert plugin.EP_NAME not in [d.ep_name for d in onnxruntime.get_ep_devices()]
            plugin.register(); plugin.register(); plugin.register("another name")
            assert [d.ep_name for d in onnxruntime.get_ep_devices()].count(plugin.EP_NAME) == 1
            opened = open_session(model)
            np.testing.assert_allclose(opened.run(x=x)[0], expected, rtol=1e-5)
            del opened; gc.collect()
    """,
        0,
    ),
    "unregister with a live device value": (
        """
        value = onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu", 0, plugin.VENDOR_ID)
        del opened; gc.collect(); plugin.unregister()
        assert plugin.live_tables() == {"Allocator": 1}, plugin.live_tables()
        del value; gc.collect()
        assert not plugin.live_tables(), plugin.live_tables()
        plugin.register()
        np.testing.assert_array_equal(onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu", 0, plugin.VENDOR_ID).numpy(), x)
    """,
        0,
    ),
    "unregister with a live session": (
        """
        from ort_gpu_ep.errors import ConfigError
        try: plugin.unregister(); raise SystemExit("no error")
        except ConfigError as error: assert "1 session" in str(error), error
        np.testing.assert_allclose(opened.run(x=x)[0], expected, rtol=1e-5)
    """,
        0,
    ),
    "registered in threads": (
        """
        del opened; gc.collect(); plugin.unregister()
        threads = [threading.Thread(target=plugin.register) for _ in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert [d.ep_name for d in onnxruntime.get_ep_devices()].count(plugin.EP_NAME) == 1
    """,
        0,
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_process_ends(python: Python, name: str) -> None:
    code, status = ENDINGS[name]
    done = python(OPEN + "\n".join(line.removeprefix("        ") for line in code.splitlines()))
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    if status != 1 and "daemon" not in name:  # a daemon thread's last run fails, as it should
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


def test_a_run_after_our_exit_hook_is_an_error(python: Python) -> None:
    """An atexit function that was registered before ours runs after it."""
    done = python(
        """
        import atexit
        def late():
            try: print("answer", opened.run(x=x))
            except Exception as error: print("error:", error)
        atexit.register(late)
    """.replace("\n        ", "\n")
        + OPEN
    )
    assert done.returncode == 0, done.stderr
    assert "error:" in done.stdout


# A session's destructor waits for its pool's threads, which a forked child does not have: no pool.
OPEN_SINGLE = (
    SETUP
    + """
plugin.register()
options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 1
opened = open_session(model, options)
np.testing.assert_allclose(opened.run(x=x)[0], expected, rtol=1e-5)
"""
)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@needs_fork
def test_a_forked_child_answers_from_the_cpu(python: Python) -> None:
    """What the child feeds itself, it gets back; the parent goes on with the GPU.

    The child leaves as those of multiprocessing do: Mesa's C exit handler would join threads that only the parent has.
    """
    done = python(
        OPEN_SINGLE
        + """
sys.stdout.flush()
child = os.fork()
if child == 0:
    for _ in range(3):
        np.testing.assert_allclose(opened.run(x=x)[0], expected, rtol=1e-5)
    assert opened.state.partitions[0].fallbacks == 3, opened.state.partitions[0].fallbacks
    assert "forked" in str(opened.state.errors[-1]), opened.state.errors
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
np.testing.assert_allclose(opened.run(x=x)[0], expected, rtol=1e-5)
assert opened.state.partitions[0].fallbacks == 0
""",
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)


@needs_fork
def test_a_forked_child_can_use_new_sessions_and_close_old_ones(python: Python) -> None:
    done = python(
        OPEN_SINGLE
        + """
child = os.fork()
if child == 0:
    del opened; gc.collect()
    other = open_session(model)
    np.testing.assert_allclose(other.run(x=x)[0], expected, rtol=1e-5)
    assert "forked" in str(other.state.errors[-1]), other.state.errors
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)


PRELOADED = (
    SETUP
    + """
import ort_gpu_ep
options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 1
def opened(**more):
    return ort_gpu_ep.InferenceSession(model, options, provider_options={"placement": "gpu", **more})
session = opened()
np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
sys.stdout.flush()
child = os.fork()
if child:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
    assert not session.stats()["fallbacks"]
    sys.exit(code)
"""
)


@needs_fork
def test_sessions_of_a_forked_server_are_told_what_to_do(python: Python) -> None:
    """As with `gunicorn --preload`: the session that the parent has made, and one that a child makes."""
    done = python(
        PRELOADED
        + """
np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
own = opened()
np.testing.assert_allclose(own.run(None, {"x": x})[0], expected, rtol=1e-5)
for text in (own.missing_gpu, session.missing_gpu, session.explain().events[-1]):
    assert "gunicorn: without --preload" in text and "isolation=process" in text, text
try:
    opened(strict="1")
except ort_gpu_ep.AdapterError as error:
    assert "forked" in str(error)
else:
    raise AssertionError("with strict=1 it is an exception")
os._exit(0)
""",
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "gunicorn: without --preload" in done.stderr


@needs_fork
def test_a_forked_server_gets_the_gpu_by_a_worker(python: Python) -> None:
    done = python(
        PRELOADED
        + """
own = opened(isolation="process")
np.testing.assert_allclose(own.run(None, {"x": x})[0], expected, rtol=1e-5)
assert own.explain().count("gpu") == len(own.explain().reports[0].nodes), own.explain()
assert own.stats()["fallbacks"] == 0
os._exit(0)
""",
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)


@needs_fork
def test_a_forked_child_is_told_about_device_values(python: Python) -> None:
    done = python(
        OPEN
        + """
value = device_value(opened, x)
child = os.fork()
if child == 0:
    try: value.numpy(); os._exit(1)
    except Exception as error: os._exit(0 if "forked child" in str(error) else 2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_device_addresses_fault(python: Python) -> None:
    done = python(
        OPEN
        + """
import ctypes
value = device_value(opened, x)
print("address", flush=True)
ctypes.string_at(value.data_ptr(), 4)
print("read")
"""
    )
    assert done.stdout.split() == ["address"]
    assert done.returncode < 0


def test_weights_do_not_stay_in_host_memory(python: Python) -> None:
    """190 MB of weights: on a software adapter they are in this process once (as device memory), not twice or three
    times."""
    done = python("""
import resource
plugin.register()
rng = np.random.default_rng(0)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
def model_of(n, k):
    nodes, weights, last = [], {}, "x"
    for i in range(k):
        weights[f"W{i}"] = np.zeros((n, n), "f"); nodes.append(node("MatMul", f"{last} W{i}", f"h{i}")); last = f"h{i}"
    return make_model(nodes, [info("x", ["N", n])], [last], weights)
open_session(model_of(16, 1))
model = model_of(2500, 8); gc.collect()
import ctypes; ctypes.CDLL(None).malloc_trim(0)
before = resident()
opened = open_session(model)
gc.collect(); ctypes.CDLL(None).malloc_trim(0)
gpu = opened.state.gpu
held = gpu.stats.allocated_nbytes - gpu.stats.pooled_nbytes >> 20
print("grown", resident() - before, "held by the device", held)
assert resident() - before < 1.35 * held + 20
""")
    assert done.returncode == 0, (done.stdout, done.stderr)
