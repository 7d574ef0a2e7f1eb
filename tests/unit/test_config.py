"""Options: precedence, and errors that help."""

from __future__ import annotations

import os
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from ort_gpu_ep import config
from ort_gpu_ep.config import OPTIONS, Config, resolve, unknown_variables
from ort_gpu_ep.errors import ConfigError


def test_defaults() -> None:
    assert resolve({}, {}) == Config()


def test_the_table_and_the_config_agree() -> None:
    assert [o.name for o in OPTIONS] == [f.name for f in fields(Config)]


def test_provider_option_then_environment_then_default() -> None:
    environment = {"ORT_GPU_EP_PLACEMENT": "cpu", "ORT_GPU_EP_STRICT": "1", "UNRELATED": "x"}
    got = resolve({"placement": "gpu"}, environment)
    assert (got.placement, got.strict, got.fusion) == ("gpu", True, True)


def test_an_empty_variable_is_as_one_that_is_not_there() -> None:
    environment = {
        "ORT_GPU_EP_PLACEMENT": "",
        "ORT_GPU_EP_STRICT": "",
        "ORT_GPU_EP_WEBGPU": "",
        "ORT_GPU_EP_HANG_TIMEOUT_MS": "",
    }
    assert resolve({}, environment) == resolve({}, {})
    assert resolve({"webgpu": "auto", "placement": "cpu"}, environment).placement == "cpu"


def test_it_reads_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GPU_EP_MEMORY_LIMIT_MB", "512")
    assert resolve().memory_limit_mb == 512


def test_what_is_of_the_process_is_set_by_the_environment_alone() -> None:
    with pytest.raises(ConfigError, match="set the environment variable ORT_GPU_EP_WEBGPU before"):
        resolve({"webgpu": "dawn"}, {})
    environment = {"ORT_GPU_EP_WEBGPU": "dawn", "ORT_GPU_EP_WEBGPU_LIBRARY": "/a/library.so"}
    assert resolve({"webgpu": "dawn", "webgpu_library": "/a/library.so"}, environment) == resolve({}, environment)
    with pytest.raises(ConfigError, match="ORT_GPU_EP_WEBGPU_LIBRARY"):
        resolve({"webgpu_library": "/another/library.so"}, environment)


@pytest.mark.parametrize(("given", "want"), [(True, True), (False, False), (1, True), ("0", False)])
def test_flags_may_be_bools_or_text(given: object, want: bool) -> None:
    assert resolve({"strict": given}, {}).strict is want


def test_a_value_may_begin_with_a_prefix() -> None:
    assert resolve({"load": "file:/tmp/x"}, {}).load == "file:/tmp/x"
    assert (resolve({"deadline_ms": 20}, {}).deadline_ms, resolve({"load": "off"}, {}).load) == (20, "off")


def test_an_unknown_option_names_the_one_that_is_meant() -> None:
    with pytest.raises(
        ConfigError,
        match=r"provider option 'placment' is unknown; did you mean 'placement'\? Known: placement, placement_budget_ms, strict",
    ):
        resolve({"placment": "gpu"}, {})


def test_an_unknown_option_that_is_like_nothing() -> None:
    with pytest.raises(ConfigError, match=r"'xyzzy' is unknown\. Known"):
        resolve({"xyzzy": "1"}, {})


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({"placement": "tpu"}, {}, r"provider option 'placement': got 'tpu', expected one of auto, gpu, cpu"),
        ({}, {"ORT_GPU_EP_STRICT": "yes"}, r"environment variable ORT_GPU_EP_STRICT: got 'yes', expected one of 0, 1"),
        ({"memory_limit_mb": "-1"}, {}, r"'memory_limit_mb': got '-1', expected a whole number"),
        ({"memory_limit_mb": 1.5}, {}, r"got '1\.5', expected a whole number"),
        ({"load": "on"}, {}, r"'load': got 'on', expected one of auto, off or file:\.\.\."),
        ({"placement": "file:x"}, {}, r"'placement': got 'file:x', expected one of auto, gpu, cpu\."),
        ({"deadline_ms": "soon"}, {}, r"'deadline_ms': got 'soon', expected a whole number"),
    ],
)
def test_values_outside_their_set(options: dict[str, object], environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(options, environment)
    assert isinstance(caught.value, ValueError)


def test_a_bad_variable_does_not_matter_where_the_option_is_given() -> None:
    assert resolve({"strict": "0"}, {"ORT_GPU_EP_STRICT": "yes"}).strict is False


# ---- files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a file two folders above it."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    return tmp_path


def resolved(options: dict[str, object] | None = None) -> Config:
    config.file_above.cache_clear()
    return resolve(options)


def test_argument_then_environment_then_file_then_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "ort-gpu-ep.toml").write_text('placement = "gpu"\nstrict = true\nfusion = false\nmemory_limit_mb = 12\n')
    assert resolved() == Config(placement="gpu", strict=True, fusion=False, memory_limit_mb=12)
    monkeypatch.setenv("ORT_GPU_EP_MEMORY_LIMIT_MB", "34")
    monkeypatch.setenv("ORT_GPU_EP_STRICT", "")
    assert resolved() == Config(placement="gpu", strict=True, fusion=False, memory_limit_mb=34)
    assert resolved({"memory_limit_mb": 56, "placement": "cpu"}) == Config(
        placement="cpu", strict=True, fusion=False, memory_limit_mb=56
    )
    assert resolve({}, {}) == Config(), "another environment than the process's has no folder"


def test_the_nearest_file_counts_alone(folder: Path) -> None:
    (folder / "ort-gpu-ep.toml").write_text("strict = true\n")
    (folder / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['ort-gpu-ep']\n")
    assert resolved().strict
    (folder / "a" / "pyproject.toml").write_text("[tool.ort-gpu-ep]\nfusion = 0\n")
    assert resolved() == Config(fusion=False)
    (folder / "a" / "ort-gpu-ep.toml").write_text("placement = 'cpu'\n")
    assert resolved() == Config(placement="cpu")


def test_a_project_file_whose_tools_are_no_table(folder: Path) -> None:
    (folder / "ort-gpu-ep.toml").write_text("strict = true\n")
    (folder / "a" / "pyproject.toml").write_text("tool = 'tool.ort-gpu-ep'\n")
    assert resolved().strict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("placment = 'gpu'", r"ort-gpu-ep\.toml: option 'placment' is unknown; did you mean 'placement'\?"),
        ("placement = 'tpu'", "toml: placement: got 'tpu', expected"),
        ("placement =", r"toml: .*expected TOML"),
        ("placement = ['gpu']", r"placement: got \['gpu'\], expected a text"),
        ("memory_limit_mb = -1", "got '-1', expected"),
        ("[tool.ort-gpu-ep]", "option 'tool' is unknown"),
        ("\udcff", "expected TOML"),
        *(
            (f"{name} = 'x'", f"{name}: this is set by the program or by ORT_GPU_EP_")
            for name in ("webgpu", "webgpu_library", "cache_dir", "quirks", "faults")
        ),
        ("load = 'file:/dev/zero'", "load: this is set by the program"),
    ],
)
def test_files_with_other_content(text: str, message: str, folder: Path) -> None:
    (folder / "ort-gpu-ep.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        resolved()
    with pytest.raises(ConfigError, match=message):
        resolve()


def test_a_file_of_others_is_ignored(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "ort-gpu-ep.toml"
    file.write_text("strict = true\n")
    file.chmod(0o666)
    assert not resolved().strict
    assert "is ignored: it belongs to another user, or others may write to it" in caplog.text
    file.chmod(0o644)
    assert resolved().strict
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert resolved().strict == (file.stat().st_uid == 0)
    file.unlink()
    os.mkfifo(file)
    assert not resolved().strict


def test_a_deleted_folder_has_no_file(folder: Path) -> None:
    (folder / "a" / "b").rmdir()
    assert resolved() == Config()


def test_cache_path() -> None:
    assert resolve({"cache_dir": "/somewhere"}, {}).cache_path == "/somewhere"
    assert "ort_gpu_ep" in resolve({}, {}).cache_path


def test_a_config_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        resolve({}, {}).strict = True  # type: ignore[misc]


def test_a_variable_that_is_no_option_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        resolve({}, {"ORT_GPU_EP_PLACMENT": "gpu", "ORT_GPU_EP_DRILL": "1"})
    assert caplog.messages == [
        "environment variable ORT_GPU_EP_PLACMENT is no option and has no effect; did you mean ORT_GPU_EP_PLACEMENT?"
    ]


def test_variables_of_the_tests_are_not_taken_for_options() -> None:
    """What tests and benchmarks read by themselves begins otherwise."""
    root = Path(__file__).parents[2]
    read = {
        name
        for folder in ("tests", "benchmarks", "models", "scripts")
        for path in (root / folder).rglob("*.py")
        for name in re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", path.read_text("utf-8"))
    }
    assert "SOAK_RUNS" in read
    assert unknown_variables(dict.fromkeys(read, "1")) == {}
