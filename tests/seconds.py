"""CPU seconds of each test file, in seconds.json: the order of files in a run of several processes, and
scripts/changed.py, go by them.

Each run of whole files adds those that are new and removes those that are gone, also with -n. `--record-seconds` renews
all that it runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).with_suffix(".json")


def known() -> dict[str, float]:
    """File -> CPU seconds."""
    found: dict[str, float] = json.loads(PATH.read_text("utf-8"))
    return found


def spent_s() -> float:
    """CPU seconds of this process, and of those that it started and that have ended."""
    taken = os.times()
    return taken.user + taken.system + taken.children_user + taken.children_system


class Seconds:
    """Counts them, in each process of a run; the one that distributes the tests is told by the others."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.spent_s: dict[str, float] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Of several processes: the longest files first, so that none is left alone with one in the end; new ones
        before all."""
        if hasattr(self.config, "workerinput"):
            takes_s = known()
            items.sort(key=lambda item: -takes_s.get(file_of(item), float("inf")))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before_s = spent_s()
        try:
            return (yield)
        finally:
            self.spent_s[file_of(item)] = self.spent_s.get(file_of(item), 0.0) + spent_s() - before_s

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.spent_s.update(getattr(node, "workeroutput", {}).get("spent_s", {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["spent_s"] = self.spent_s
        elif self.config.getoption("--record-seconds") or (self.are_whole() and not session.testsfailed):
            self.record()

    def are_whole(self) -> bool:
        """Whether all daily tests of the files ran that ran at all."""
        option = self.config.option
        part = option.keyword or option.deselect or option.collectonly or "not nightly" not in option.markexpr
        return not part and not any("::" in argument for argument in self.config.args)

    def record(self) -> None:
        before = known()
        found = {file: round(seconds, 1) for file, seconds in self.spent_s.items()}
        after = {**found, **before, **(found if self.config.getoption("--record-seconds") else {})}
        after = {file: seconds for file, seconds in sorted(after.items()) if (self.config.rootpath / file).exists()}
        if after != before:
            PATH.write_text(json.dumps(after, indent=0) + "\n", "utf-8")


def file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]
