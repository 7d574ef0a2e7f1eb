"""A program forks while its session finds out beside the runs where it runs best."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

PROGRAM = """
import importlib, os, signal, sys, threading
import numpy as np
import ort_gpu_ep
from tests.unit.graphs import model_of

PATIENCE_S = 120
name, importing, forking = [], threading.Event(), threading.Event()

class Slow:
    '''The first module of the package that the background imports: its import begins before the fork, and goes on meanwhile.'''

    def find_spec(self, module, path, target=None):
        if not name and module.startswith("ort_gpu_ep") and threading.current_thread().name.startswith("ort_gpu_ep"):
            name.append(module)
            importing.set()
            forking.wait(PATIENCE_S)
            sum(range(5_000_000))

sys.meta_path.insert(0, Slow())
session = ort_gpu_ep.InferenceSession(model_of("(float[N] x) => (float[N] y) { y = Tanh(x) }").SerializeToString(),
                                      provider_options={"adapter": "0"})
x = np.ones(4, "f")
session.run(None, {"x": x})
assert importing.wait(PATIENCE_S)
os.register_at_fork(before=forking.set)
child = os.fork()
if child == 0:
    signal.alarm(PATIENCE_S)        # ends a child that waits for a thread that it does not have
    importlib.import_module(*name)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.tanh(x), rtol=1e-5)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, name
assert session.wait_ready(PATIENCE_S)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_can_import_what_a_thread_of_its_parent_was_importing(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
