"""A program that names its providers gets the GPU before them: by patch(), and below `ort-gpu-ep exec`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime import InferenceSession as HeldBefore
from onnxruntime.capi import onnxruntime_inference_collection as collection

import ort_gpu_ep as ort
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.processes import children
from ort_gpu_ep.session import patching
from tests.session.conftest import NODES, ROOT, assert_close, on_the_cpu

Array = np.ndarray[Any, Any]
CPU = "CPUExecutionProvider"
BOTH = [ort.EP_NAME, CPU]
GPU = {"placement": "gpu"}


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    def environment() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith(("PYTHONPATH", "ORT_GPU_EP"))}

    before = environment()
    yield
    assert not patching._patches
    assert environment() == before


# ---- patch()


@pytest.mark.parametrize("held", [True, False], ids=["imported before", "by its module"])
@pytest.mark.parametrize(
    ("providers", "options"),
    [
        (None, None),
        ([], None),
        ([CPU], None),
        ([CPU], [{}]),
        ([(CPU, {})], None),
        (["AzureExecutionProvider", CPU], None),
        ((CPU,), None),
    ],
)
def test_whatever_a_program_names(held: bool, providers: Any, options: Any, mlp: bytes, x: Array) -> None:
    want = on_the_cpu(mlp, {"x": x})
    with ort.patch(GPU):
        kind = HeldBefore if held else onnxruntime.InferenceSession
        session = kind(mlp, providers=providers, provider_options=options)
    assert session.get_providers() == BOTH
    assert session.explain().count("gpu") == NODES
    assert_close(session.run(None, {"x": x}), want)


def test_providers_that_are_not_there(mlp: bytes) -> None:
    with ort.patch(GPU), pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider names"):
        assert HeldBefore(mlp, providers=["CUDAExecutionProvider"]).get_providers() == BOTH


def test_one_that_names_ours_is_left_as_it_is(mlp: bytes) -> None:
    with ort.patch(GPU):
        assert HeldBefore(mlp, providers=[(ort.EP_NAME, {"placement": "cpu"}), CPU]).get_providers() == [CPU]


@pytest.mark.parametrize(
    "providers", [onnxruntime.get_available_providers, lambda: [CPU, (ort.EP_NAME, {"fusion": "0"})]]
)
def test_ours_is_first_where_a_program_names_whatever_is_there(providers: Any, mlp: bytes, x: Array) -> None:
    """Once it is registered, onnxruntime lists it behind the CPU, which would have all nodes."""
    want = on_the_cpu(mlp, {"x": x})
    ort.register()
    with ort.patch(GPU):
        session = HeldBefore(mlp, providers=providers())
    assert session.get_providers() == BOTH
    assert_close(session.run(None, {"x": x}), want)
    assert session.stats()["runs"] == 1
    assert session.get_provider_options()[ort.EP_NAME].get("fusion", "1") == (
        "1" if providers is onnxruntime.get_available_providers else "0"
    )


@pytest.mark.parametrize("providers", [[7], [(CPU,)]])
def test_malformed_ones_are_none_as_for_onnxruntime(providers: Any, mlp: bytes) -> None:
    assert HeldBefore(mlp, providers=providers).get_providers() == [CPU]
    with ort.patch(GPU), pytest.warns(UserWarning, match="'providers' .* Going on with"):
        assert HeldBefore(mlp, providers=providers).get_providers() == BOTH


def test_no_list_at_all_raises_what_onnxruntime_raises(mlp: bytes) -> None:
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        HeldBefore(mlp, providers=7)
    with ort.patch(GPU), pytest.raises(TypeError, match="'int' object is not iterable"):
        HeldBefore(mlp, providers=7)


def test_set_providers(mlp: bytes) -> None:
    with ort.patch(GPU):
        session = HeldBefore(mlp)
        session.set_providers([CPU])
        assert session.get_providers() == BOTH


def test_a_provider_that_nobody_has(mlp: bytes) -> None:
    """As in onnxruntime the constructor goes on without it, set_providers does not; the session stays what it was."""
    with ort.patch(GPU):
        with pytest.warns(UserWarning, match="NoProvider"):
            session = HeldBefore(mlp, providers=["NoProvider", CPU])
        with pytest.raises(RuntimeError, match="Unknown Provider Type: NoProvider"):
            session.set_providers(["NoProvider"])
        assert session.get_providers() == BOTH


def test_no_cpu_fallback(mlp: bytes) -> None:
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with ort.patch(GPU), pytest.warns(UserWarning, match="CUDA"):
        assert HeldBefore(mlp, settings, providers=["CUDAExecutionProvider"]).explain().count("gpu") == NODES


def test_a_subclass_of_a_patched_program(mlp: bytes, x: Array) -> None:
    with ort.patch(GPU):

        class Mine(onnxruntime.InferenceSession):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(mlp, providers=[CPU])

        session = Mine()
    assert type(session) is Mine
    assert session.explain().count("gpu") == NODES
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


@pytest.mark.parametrize("placement", ["auto", "gpu"])
def test_what_we_make_of_onnxruntimes_stays_onnxruntimes(placement: str, mlp: bytes, x: Array, tmp_path: Path) -> None:
    want = on_the_cpu(mlp, {"x": x})
    with ort.patch({"placement": placement, "adapter": "0", "cache_dir": tmp_path, "load": "off"}):
        session = HeldBefore(mlp, providers=[CPU])
        for _ in range(2):
            assert_close(session.run(None, {"x": x}), want)
        plain = session._cpu_session()
    assert type(plain) is HeldBefore
    assert plain.get_providers() == [CPU]


def test_undo_gives_everything_back(mlp: bytes) -> None:
    init = HeldBefore.__init__
    outer = ort.patch({"placement": "cpu"})
    inner = ort.patch(GPU)
    assert onnxruntime.InferenceSession is collection.InferenceSession is patching.PatchedSession
    assert os.environ["ORT_GPU_EP_PLACEMENT"] == "gpu"
    inner.undo()
    inner.undo()
    assert os.environ["ORT_GPU_EP_PLACEMENT"] == "cpu"
    assert onnxruntime.InferenceSession is patching.PatchedSession
    outer.undo()
    assert onnxruntime.InferenceSession is collection.InferenceSession is HeldBefore
    assert HeldBefore.__init__ is init
    session = HeldBefore(mlp, providers=[CPU])
    assert type(session) is HeldBefore
    assert session.get_providers() == [CPU]


def test_a_wrong_option_changes_nothing() -> None:
    with pytest.raises(ConfigError, match="did you mean 'placement'"):
        ort.patch({"placment": "gpu"})
    assert onnxruntime.InferenceSession is HeldBefore


def test_it_is_said_once(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patching, "_said", False)
    for _ in range(2):
        ort.patch().undo()
    assert capfd.readouterr().err == f"ort_gpu_ep: {children.announcement('auto')}; in Python children too\n"


def test_pythonpath_keeps_its_other_entries() -> None:
    there = os.pathsep.join(["", "/a", "/b"])
    once = children.hooked({}, {"PYTHONPATH": there})
    assert once["PYTHONPATH"] == os.pathsep.join([children.HOOK, there])
    assert children.hooked({}, once) == once
    assert children.hooked({}, {})["PYTHONPATH"] == children.HOOK


# ---- ort-gpu-ep exec


APP = """
import os, sys
import numpy as np
from onnxruntime import InferenceSession
session = InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])
np.save(sys.argv[1], session.run(None, {"x": np.load(os.environ["X"])})[0])
print(*session.get_providers(), session.explain().count("gpu"), "--flag" in sys.argv)
"""


@pytest.fixture
def folder(tmp_path: Path, mlp: bytes, x: Array) -> Path:
    (tmp_path / "model.onnx").write_bytes(mlp)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def started(folder: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MODEL": str(folder / "model.onnx"),
        "X": str(folder / "x.npy"),
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ort_gpu_ep.cli", "exec", *map(str, arguments)],
        cwd=folder,
        text=True,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def executed(folder: Path, *arguments: object, **environment: str) -> tuple[int, str, str]:
    process = started(folder, *arguments, **environment)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


SAID = "ort-gpu-ep: WgpuExecutionProvider comes first in all sessions (placement=gpu)\n"


def test_an_app_that_names_the_cpu(folder: Path, mlp: bytes, x: Array) -> None:
    done = executed(folder, "-o", "placement=gpu", "--", sys.executable, "app.py", folder / "y.npy", "--flag")
    assert done == (0, f"{' '.join(BOTH)} {NODES} True\n", SAID)
    assert_close([np.load(folder / "y.npy")], on_the_cpu(mlp, {"x": x}, ["y"]))


@pytest.mark.parametrize(
    "how",
    [
        "import subprocess, sys; sys.exit(subprocess.run([sys.executable, 'app.py', 'y.npy']).returncode)",
        "import multiprocessing, runpy, sys\n"
        "if __name__ == '__main__':\n"
        "    sys.argv = ['app.py', 'y.npy']\n"
        "    child = multiprocessing.get_context('spawn').Process(target=runpy.run_path, args=('app.py',)); "
        "child.start(); child.join()\n"
        "    sys.exit(child.exitcode)",
    ],
    ids=["subprocess", "multiprocessing"],
)
def test_children(how: str, folder: Path) -> None:
    (folder / "parent.py").write_text(how)
    done = executed(folder, "-o", "placement=gpu", "--", sys.executable, "parent.py")
    assert done == (0, f"{' '.join(BOTH)} {NODES} False\n", SAID)


@pytest.mark.parametrize(
    "before",
    [
        "from ort_gpu_ep import EP_NAME",
        "import ort_gpu_ep; ort_gpu_ep.InferenceSession",
        "import ort_gpu_ep.session.patching",
        "import ort_gpu_ep.ir.graph",
        "from ort_gpu_ep import adapters",
        "from ort_gpu_ep.training import trainer",
        "import ort_gpu_ep; ort_gpu_ep.register()",
    ],
)
def test_a_program_that_imports_ours_first(before: str, folder: Path) -> None:
    """Then it is our modules that load onnxruntime."""
    (folder / "first.py").write_text(before + "\n" + APP)
    done = executed(folder, "-o", "placement=gpu", "--", sys.executable, "first.py", "y.npy")
    assert done == (0, f"{' '.join(BOTH)} {NODES} False\n", SAID)


def test_a_command_of_ours_below_another(folder: Path) -> None:
    rc, out, err = executed(folder, "-o", "placement=gpu", "--", sys.executable, "-m", "ort_gpu_ep.cli", "options")
    assert (rc, err) == (0, SAID)
    assert "memory_limit_mb" in out


def test_threads_that_import_ours_and_onnxruntime(folder: Path) -> None:
    """Whoever comes first: afterwards it is patched."""
    (folder / "threads.py").write_text(
        "import importlib, threading\n"
        "names = ['ort_gpu_ep.session.session', 'onnxruntime', 'ort_gpu_ep.session.patching']\n"
        "threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in names]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n" + APP
    )
    done = executed(folder, "-o", "placement=gpu", "--", sys.executable, "threads.py", "y.npy")
    assert done == (0, f"{' '.join(BOTH)} {NODES} False\n", SAID)


@pytest.mark.parametrize(
    ("placement", "said"),
    [("auto", "is offered to sessions; placement=auto may choose the CPU"), ("cpu", "takes no node (placement=cpu)")],
)
def test_nothing_is_promised_that_is_not_kept(placement: str, said: str, folder: Path) -> None:
    """ "comes first in all sessions" stood above sessions that had every node on the CPU."""
    rc, out, err = executed(folder, "-o", f"placement={placement}", "--", sys.executable, "app.py", folder / "y.npy")
    assert rc == 0
    assert " 0 " in out
    assert said in err
    assert "comes first" not in err


def test_one_sentence_without_a_driver(folder: Path, tmp_path: Path) -> None:
    """Whatever asks for a device: sessions, the candidates of placement=auto, explain()."""
    (folder / "app.py").write_text(
        "import onnxruntime, os\n"
        "for _ in range(3):\n"
        "    session = onnxruntime.InferenceSession(os.environ['MODEL'], providers=['CPUExecutionProvider'])\n"
        "    session.explain()\n"
    )
    nothing = {name: str(tmp_path / "none.json") for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")}
    for option in ("placement=auto", "placement=gpu", "isolation=process"):
        rc, _, err = executed(
            folder, "-o", option, "-o", f"cache_dir={tmp_path / 'cache'}", "--", sys.executable, "app.py", **nothing
        )
        assert rc == 0, err
        assert err.count("no GPU adapter") == 1, err


def test_a_short_program_without_a_driver(folder: Path, tmp_path: Path) -> None:
    """With placement=auto adapters are looked for beside the runs: a program that ended before said nothing."""
    nothing = {name: str(tmp_path / "none.json") for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")}
    rc, out, err = executed(
        folder, "-o", f"cache_dir={tmp_path / 'cache'}", "--", sys.executable, "app.py", folder / "y.npy", **nothing
    )
    assert rc == 0, err
    assert " 0 " in out
    assert err.count("running on the CPU: no GPU adapter") == 1, err
    assert "Unset VK_DRIVER_FILES" in err


def test_children_of_a_patched_process(folder: Path) -> None:
    with ort.patch(GPU):
        env = {**os.environ, "MODEL": str(folder / "model.onnx"), "X": str(folder / "x.npy")}
        done = subprocess.run(
            [sys.executable, "app.py", "y.npy"], cwd=folder, capture_output=True, text=True, timeout=300, env=env
        )
    assert (done.stdout, done.stderr) == (f"{' '.join(BOTH)} {NODES} False\n", "")


def test_a_program_without_onnxruntime_loads_nothing_of_ours(folder: Path) -> None:
    code = (
        "import sys; print([m for m in list(sys.modules) if m.partition('.')[0] in ('ort_gpu_ep', 'onnxruntime', "
        "'numpy', 'wgpu')])"
    )
    assert executed(folder, "-o", "placement=gpu", sys.executable, "-c", code) == (0, "[]\n", SAID)


def test_the_users_own_sitecustomize_runs(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("import sys; sys.mine = __name__, __file__")
    code = "import sys, sitecustomize; print(sys.mine == (sitecustomize.__name__, sitecustomize.__file__), sys.mine[0])"
    done = executed(
        folder, "--", sys.executable, "-c", code, PYTHONPATH=os.pathsep.join([str(ROOT), str(folder / "own")])
    )
    assert done[:2] == (0, "True sitecustomize\n")


def test_a_python_that_cannot_load_us_goes_on(folder: Path) -> None:
    """Another interpreter, which has onnxruntime but not what we need."""
    (folder / "onnxruntime.py").write_text("here = True")
    code = (
        "import onnxruntime; print(onnxruntime.here, type(onnxruntime.__loader__).__name__, "
        "type(onnxruntime.__spec__.loader).__name__)"
    )
    rc, out, err = executed(folder, "-o", "placement=gpu", "--", sys.executable, "-c", code)
    assert (rc, out) == (0, "True SourceFileLoader SourceFileLoader\n")
    assert err.startswith(SAID + "ort-gpu-ep: process ")
    assert "uses onnxruntime without the GPU: " in err


@pytest.mark.parametrize("code", [0, 3, 139])
def test_exit_codes(code: int, folder: Path) -> None:
    assert executed(folder, "--", sys.executable, "-c", f"import sys; sys.exit({code})")[0] == code


def test_signals(folder: Path) -> None:
    code = (
        "import signal, time; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True); "
        "time.sleep(600)"
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        process = started(folder, "--", sys.executable, "-c", code)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        process.send_signal(number)
        process.communicate(timeout=300)
        assert process.returncode == -number


def test_ignored_signals_are_not_inherited(folder: Path) -> None:
    out = executed(folder, "--", "sh", "-c", "grep SigIgn /proc/self/status")[1]
    assert not int(out.split()[1], 16) & (1 << (signal.SIGPIPE - 1))


def test_a_program_that_is_not_there(folder: Path) -> None:
    rc, _, err = executed(folder, "--", "no-such-program")
    assert (rc, err.splitlines()[-1]) == (127, "no-such-program: no such program in PATH")


@pytest.mark.parametrize(
    ("arguments", "rc", "message"),
    [
        (("-o", "placment=gpu", "--", "true"), 1, "did you mean 'placement'"),
        ((), 2, "Missing argument"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], rc: int, message: str, folder: Path) -> None:
    done = executed(folder, *arguments)
    assert done[0] == rc
    assert message in " ".join(done[2].split())
