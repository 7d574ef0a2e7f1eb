"""What is committed is there as a whole; what belongs to another run is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from ort_gpu_ep import ScoringError
from ort_gpu_ep.scoring import parts
from ort_gpu_ep.scoring.parts import Shard, claimed, commit, cut, is_done, merge

MANIFEST: dict[str, Any] = {
    "model": "abc",
    "files": [{"path": "/a", "mtime_ns": 1}, {"path": "/b", "mtime_ns": 2}],
    "columns": {"x": ["x"]},
}


def table(shard: Shard) -> pa.Table:
    return pa.table({"row": range(shard.first, shard.first + shard.rows)})


def test_shards_cover_each_row_once_and_stay_in_files() -> None:
    shards = list(cut([5, 4, 1], 4))
    assert [(s.number, s.file, s.start, s.stop, s.first) for s in shards] == [
        (0, 0, 0, 4, 0),
        (1, 0, 4, 5, 4),
        (2, 1, 0, 4, 5),
        (3, 2, 0, 1, 9),
    ]


def test_a_part_that_is_interrupted_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shard,) = cut([3], 4)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with claimed(tmp_path / "out", MANIFEST) as folder:
        with monkeypatch.context() as patch:
            patch.setattr(parts.os, "fsync", killed)
            with pytest.raises(KeyboardInterrupt):
                commit(folder, shard, table(shard))
        assert not is_done(folder, shard)
        assert list(folder.glob("*.tmp"))
    with claimed(tmp_path / "out", MANIFEST) as folder:
        assert not list(folder.glob("*.tmp"))
        commit(folder, shard, table(shard))
        assert is_done(folder, shard)
        (folder / shard.name).write_bytes(b"PAR1")  # damaged afterwards
        assert not is_done(folder, shard)


def test_a_part_that_is_there_outlives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content is on the disk before it has its name, and then its name is."""
    steps, (shard,) = list[str](), cut([3], 4)
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")

    def renamed(source: Path, target: Path) -> None:
        replace(source, target)
        steps.append("name")

    with claimed(tmp_path / "out", MANIFEST) as folder:
        monkeypatch.setattr(parts.os, "fsync", fsync)
        monkeypatch.setattr(parts.os, "replace", renamed)
        commit(folder, shard, table(shard))
        assert steps == ["content", "name", "folder"][: 3 if os.name == "posix" else 2]  # Windows has none for a folder


def test_parts_become_one_file_in_order(tmp_path: Path) -> None:
    shards = list(cut([5, 4], 2))
    out = tmp_path / "out.parquet"
    with claimed(out, MANIFEST) as folder:
        for shard in reversed(shards):
            commit(folder, shard, table(shard))
        merge(folder, out, shards)
    assert parquet.read_table(out).column("row").to_pylist() == list(range(9))
    assert [p.name for p in tmp_path.iterdir()] == ["out.parquet"]
    with pytest.raises(ScoringError, match=r"out.parquet exists: choose another output"), claimed(out, MANIFEST):
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "abd"}, "model was 'abc', is 'abd'"),
        ({"files": MANIFEST["files"][:1]}, "files: 2 then, 1 now"),
        ({"files": [MANIFEST["files"][0], {"path": "/b", "mtime_ns": 3}]}, "files /b mtime_ns was 2, is 3"),
        ({"columns": {"x": ["y"]}}, "columns x 0 was 'x', is 'y'"),
    ],
)
def test_another_runs_output_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with claimed(tmp_path / "out", MANIFEST):
        pass
    with (
        pytest.raises(ScoringError, match=f"holds the output of another run: {message}. Choose another"),
        claimed(tmp_path / "out", {**MANIFEST, **change}),
    ):
        pass


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ScoringError, match=r"holds something else"), claimed(tmp_path, MANIFEST):
        pass
    with pytest.raises(ScoringError, match=r"is no folder"), claimed(tmp_path / "thesis.tex", MANIFEST):
        pass


def test_two_runs_at_a_time_are_refused(tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "out", MANIFEST),
        pytest.raises(ScoringError, match=r"another process is scoring"),
        claimed(tmp_path / "out", MANIFEST),
    ):
        pass


def test_what_a_later_run_is_to_do_likewise_is_noted_and_refuses_nobody(tmp_path: Path) -> None:
    with claimed(tmp_path / "out", MANIFEST) as folder:
        assert parts.noted(folder) == {}
        parts.note(folder, {"CPU": 64})
        parts.note(folder, {"H200": 256})
    with claimed(tmp_path / "out", MANIFEST) as folder:
        assert parts.noted(folder) == {"CPU": 64, "H200": 256}


@pytest.mark.skipif(os.name == "nt", reason="links and FIFOs need more rights on Windows")
def test_nothing_in_a_folder_of_parts_leads_out_of_it_or_waits(tmp_path: Path) -> None:
    """The folder may come out of an archive of somebody else's."""
    victim, shard = tmp_path / "victim", next(cut([3], 4))
    victim.write_text("the user's")
    out = tmp_path / "out"
    out.mkdir()
    (out / (parts.MANIFEST + ".tmp")).symlink_to(victim)
    with claimed(out, MANIFEST) as folder:
        (folder / f"{shard.name}.{os.getpid()}.tmp").symlink_to(victim)
        commit(folder, shard, table(shard))
        (folder / "out.parquet.tmp").symlink_to(victim)
        merge(folder, tmp_path / "out.parquet", [shard])
    assert parquet.read_table(tmp_path / "out.parquet").num_rows == 3
    for name, make in (
        (parts.LOCK, os.mkfifo),
        (parts.LOCK, lambda path: os.symlink(victim, path)),
        (parts.MANIFEST, os.mkfifo),
    ):
        other = tmp_path / f"other {name} {make}"
        other.mkdir()
        make(other / name)
        with pytest.raises(ScoringError, match=name), claimed(other, MANIFEST):
            pass
    os.mkfifo(tmp_path / shard.name)
    assert not is_done(tmp_path, shard)
    (tmp_path / shard.name).unlink()
    (tmp_path / shard.name).symlink_to(tmp_path / "out.parquet")
    assert not is_done(tmp_path, shard)
    assert victim.read_text() == "the user's"
