"""Finds the compiled shim of this platform, or compiles it.

A wheel carries the shims of the platforms that have wheels of onnxruntime; a source checkout compiles one with the
system's C compiler (or `ziglang`). The file name holds a digest of shim.c, so that a stale file is never loaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ort_gpu_ep import store
from ort_gpu_ep.errors import GpuEpError
from ort_gpu_ep.processes import child

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "shim.c"
FLAGS = ("-shared", "-O2", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fvisibility=hidden")

SUFFIXES = {"linux": "so", "macos": "dylib", "windows": "dll"}
ZIG_TARGETS = {
    "linux-x86_64": "x86_64-linux-gnu",
    "linux-arm64": "aarch64-linux-gnu",
    "macos-arm64": "aarch64-macos.14.0",
    "windows-x86_64": "x86_64-windows-gnu",
    "windows-arm64": "aarch64-windows-gnu",
}
"""Those that have wheels of onnxruntime 1.26 and newer; macOS from the version on that they need."""


_NO_COMPILER = "no C compiler was found (looked for $CC, cc, gcc, clang and the package ziglang)"


class BuildError(GpuEpError):
    """The shim is not there and can't be compiled."""


def current_platform() -> str:
    """`linux-x86_64` and the like, of the running interpreter."""
    system = {"linux": "linux", "darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    return f"{system}-{ {'amd64': 'x86_64', 'aarch64': 'arm64'}.get(machine, machine) }"


def file_name(target: str) -> str:
    """The shim's file name for a platform, with a digest of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(FLAGS).encode()).hexdigest()[:8]
    return f"shim-{digest}-{target}.{SUFFIXES.get(target.split('-')[0], 'so')}"


def find_or_build() -> Path:
    """The shim of this platform: from the package, from the cache, or compiled now.

    Raises: BuildError, if it is in neither place and no C compiler works.
    """
    name = file_name(current_platform())
    folders = [FOLDER, Path(store.cache_folder()) / "shim"]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    for folder in folders:
        if _writable(folder):
            return build(folder / name)
    raise BuildError(
        f"the native shim {name} is not in the package and can't be built: neither {folders[0]} nor {folders[1]} "
        f"is writable."
    )


def build(
    path: Path, target: str | None = None, tell: Callable[[Sequence[str]], object] = lambda compiler: None
) -> Path:
    """Compiles the shim to `path`. Concurrent processes may do the same: each writes its own file and renames it.

    target: a key of ZIG_TARGETS to cross-compile for; the running platform by default. tell: is told the compiler that
    did it, with its options. Raises: BuildError, with what each compiler said.
    """
    said = []
    for command in _compilers(target):
        with tempfile.TemporaryDirectory(prefix=".shim-", dir=path.parent) as folder:
            built = Path(folder) / path.name
            try:
                done = subprocess.run(command_line(command, path.name, built, SOURCE), capture_output=True, text=True)
            except OSError as error:
                said.append(f"{' '.join(command)}: {error}")
                continue
            if done.returncode == 0:
                tell(command)
                return _publish(built, path)
            said.append(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-500:]}")
    raise BuildError(
        f"the native shim for {target or current_platform()} must be compiled, and that failed. "
        "Install a C compiler, or `pip install ziglang`." + "".join(f"\n  {text}" for text in said or [_NO_COMPILER])
    )


def command_line(compiler: Sequence[str], name: str, out: str | Path, source: str | Path) -> list[str]:
    """What compiles the shim called `name` to `out`."""
    return [*compiler, *FLAGS, *_names(name), "-o", str(out), str(source)]


def build_all(folder: Path = FOLDER) -> list[Path]:
    """Cross-compiles the shims of all platforms with `ziglang`, for a wheel. Those of older sources go."""
    for old in folder.glob("shim-*"):
        old.unlink()
    return [build(folder / file_name(target), target) for target in ZIG_TARGETS]


def _compilers(target: str | None) -> list[Sequence[str]]:
    system = (target or current_platform()).split("-")[0]
    position = () if system == "windows" else ("-fPIC",)
    zig = []
    if importlib.util.find_spec("ziglang") is not None:
        named = ZIG_TARGETS.get(target or current_platform())
        with suppress(OSError):  # a frozen application has no Python to start it with
            zig = [
                [
                    *child.command("ziglang"),
                    "cc",
                    "-fno-sanitize=all",
                    "-s",
                    *(("-target", named) if named else ()),
                    *position,
                ]
            ]
    if target is not None:
        return list(zig)
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    native = next(([path, *position] for name in names if name and (path := shutil.which(name))), None)
    return [*([native] if native else []), *zig]


def _names(name: str) -> tuple[str, ...]:
    """A library of macOS holds its own name; by default that is where it was made, another folder each time."""
    return (f"-Wl,-install_name,@rpath/{name}",) if name.endswith(".dylib") else ()


def _publish(scratch: Path, path: Path) -> Path:
    """Gives the file its name, unless another process was faster: its file may be loaded already and must stay."""
    try:
        if os.name == "nt":
            os.rename(scratch, path)
        else:
            os.link(scratch, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        os.replace(scratch, path)
    return path


def _writable(folder: Path) -> bool:
    try:
        store.make_folder(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


if __name__ == "__main__":
    for built in build_all() if "--all" in sys.argv[1:] else [find_or_build()]:
        print(built)
