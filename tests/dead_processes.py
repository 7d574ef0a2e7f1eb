"""A test process that dies, or hangs in native code, fails the run with its test's name, its stacks and what it wrote
last; the others go on.

pytest-xdist 3.8 waits for ever then: it gives the files that the dead process had finished away again, and whoever gets
one of those has nothing to report; a process that knows of one test alone waits for a second one; and it gives files to
a new process that knows of no tests yet. It breaks off where it sends a file to a process that has died, and has not
come to that event yet.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

LIMIT_S = 660
"""Of one test without a limit of its own: above pytest-timeout's, which a test in native code does not see."""


class Files(LoadFileScheduling):
    """As `--dist loadfile`. The test at which a process died has failed and is not run again; what it had not run goes
    to others."""

    def remove_node(self, node: Any) -> str | None:
        files = self.assigned_work.pop(node)
        left = [(tests, name) for tests in files.values() for name, done in tests.items() if not done]
        if not left:
            return None
        tests, crashed = left[0]
        tests[crashed] = True
        self.workqueue.update({file: tests for file, tests in files.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node: Any) -> None:
        file, tests = next(iter(self.workqueue.items()))
        try:
            super()._assign_work_unit(node)
        except OSError:  # execnet's, of a pipe that nobody reads; the event that the process has died follows
            del self.assigned_work[node][file]
            self.workqueue[file] = tests

    def _reschedule(self, node: Any) -> None:
        if node in self.registered_collections:  # else it is new, and has its turn when it has found its tests
            super()._reschedule(node)

    def schedule(self) -> None:
        again = self.collection is not None
        super().schedule()
        if again:  # a process that took a dead one's place: a second file, or the word that there is none
            super().schedule()


class Controller:
    """Distributes the tests, and says of what a process died."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.folder = tempfile.TemporaryDirectory(prefix="stacks-")
        self.nodes: list[Any] = []
        self.dead: dict[str, str] = {}

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return Files(config, log) if config.getoption("dist") == "loadfile" else None

    def pytest_configure_node(self, node: Any) -> None:
        self.nodes.append(node)
        node.workerinput.update(dying=str(Path(self.folder.name) / node.gateway.id), limit_s=self.limit_s)

    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error and error != "keyboard-interrupt":
            self.died(node, 10.0)

    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        report.longrepr = f"{report.longrepr}\n{self.dead[report.node.gateway.id]}"

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """xdist ends the processes in it, and does not look at how they end; one that takes too long it kills."""
        done = yield
        for node in self.nodes:
            if process_of(node).poll() not in (None, 0, -signal.SIGKILL) and node.gateway.id not in self.dead:
                self.died(node, 0)
        if self.dead and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return done

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for said in self.dead.values():
            terminalreporter.write_line(f"a test process died: {said}")

    def pytest_unconfigure(self) -> None:
        self.folder.cleanup()

    def died(self, node: Any, patience_s: float) -> None:
        status = process_of(node).wait(patience_s)
        left = [Path(self.folder.name) / f"{node.gateway.id}.{kind}" for kind in ("stacks", "stderr")]
        stacks, stderr = [path.read_text(errors="replace") if path.exists() else "" for path in left]
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
        self.dead[node.gateway.id] = (
            f"{node.gateway.id} ended {how}\nits stacks:\n{stacks}\nwhat its last test wrote to stderr:\n{stderr}"
        )


def process_of(node: Any) -> subprocess.Popen[bytes]:
    """execnet does not offer it."""
    process: subprocess.Popen[bytes] = node.gateway._io.popen
    return process


class Worker:
    """Writes its stacks when it dies, or when one test takes longer than any may; what tests write to stderr is in a
    file that outlives it."""

    def __init__(self, config: pytest.Config, dying: str, limit_s: float) -> None:
        self.stacks = open(f"{dying}.stacks", "w")  # noqa: SIM115 - for as long as the process lives
        self.limit_s = limit_s
        if config.getoption("capture") == "fd":  # into a file without a name, until here
            kept = config.pluginmanager.getplugin("capturemanager")._global_capturing.err.tmpfile
            with open(f"{dying}.stderr", "w+b") as named:
                os.dup2(named.fileno(), kept.fileno())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        faulthandler.enable(self.stacks)
        own = item.get_closest_marker("timeout")
        faulthandler.dump_traceback_later(
            max(self.limit_s, 1.1 * own.args[0] if own else 0), exit=True, file=self.stacks
        )
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


def install(config: pytest.Config, limit_s: float = LIMIT_S) -> None:
    """For conftest.py's pytest_configure."""
    given = getattr(config, "workerinput", None)
    if given is not None:
        config.pluginmanager.register(Worker(config, given["dying"], given["limit_s"]))
    elif config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(Controller(limit_s))
