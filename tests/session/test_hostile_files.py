"""A sample of the models that mean harm to files: `python -m tests.session.hostile_files --count 200` opens more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.session.hostile_files import GENERATED_BY, ROOT, WAYS, results

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="links, FIFOs, devices and /proc as Linux has them"
)


@pytest.mark.timeout(1800)
def test_nothing_happens_to_files() -> None:
    """One of the models is a decoder, so that each way has one that it takes."""
    first = GENERATED_BY - 2
    found = list(results(first, 2))
    assert [entry for entry in found if entry["wrong"]] == []
    assert [(entry["seed"], entry["way"]) for entry in found] == [
        (seed, way) for seed in (first, first + 1) for way in WAYS
    ]
    ran = Counter(entry["way"] for entry in found if entry["said"].startswith("ran"))
    assert set(ran) == set(WAYS)


SEES = """
import os, sys
from pathlib import Path
from tests.session.hostile_files import Watch, listing, sandbox, write_model
base = Path(sys.argv[1])
sandbox(base)
model = write_model(base, 1)
watch, before = Watch(base), listing(base)
model.read_bytes(), (base / "out" / "mine").write_bytes(b"x")
assert not watch.opened and listing(base) == before
{action}
after = listing(base)
print(len(watch.opened), sorted(name for name in after if after[name] != before.get(name)))
"""


@pytest.mark.parametrize(
    ("action", "said"),
    [
        # the second part by the time of the last reading
        ("(base / 'home' / 'id_rsa').read_bytes()", "1 ['home/id_rsa']"),
        ("(model.parent / 'up/home/.bashrc').write_bytes(b'')", "1 ['home/.bashrc']"),
        ("(base / 'tmp' / 'id_rsa').write_bytes(b'')", "0 ['tmp/id_rsa']"),
        ("os.utime(model.parent / 'w.bin', (1, 1))", "0 ['models/1/hard', 'models/1/w.bin']"),
        ("open('/dev/zero').close()", "1 []"),
    ],
)
def test_the_watch_sees(action: str, said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEES.format(action=action), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() in (said, said.replace("1 ['home/id_rsa']", "1 []")), (
        "a file system without times of reading"
    )
