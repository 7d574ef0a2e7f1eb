"""wgpu-native without wgpu-py: the same declarations, its errors raised, its losses told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cffi import FFI

from ort_gpu_ep.device import Gpu, info
from ort_gpu_ep.device.adapter import choose, limits_of, request_device
from ort_gpu_ep.webgpu import native, objects, wgpu_native
from ort_gpu_ep.webgpu.library import HEADER, GPUError, GPUValidationError, checked, ffi, lib, resources
from scripts import gen_declarations

DEVICE = Path(objects.__file__).parent
USED = sorted(
    {
        name
        for file in ("objects.py", "native.py", "library.py", "wgpu_native.py")
        for name in re.findall(r'"(WGPU[A-Z][a-z]\w+)(?: \*|\[\])?"', (DEVICE / file).read_text("utf-8"))
    }
)
FUNCTIONS = sorted(
    {
        name
        for file in ("objects.py", "native.py", "wgpu_native.py")
        for name in re.findall(r"(?:lib|checked)\.(wgpu\w+)", (DEVICE / file).read_text("utf-8"))
    }
)


@pytest.fixture(scope="module")
def parsed() -> FFI:
    """What cffi's parser makes of the installed header, as wgpu-py has it."""
    made = FFI()
    made.cdef((resources() / HEADER).read_text("utf-8"))
    return made


def test_declarations_are_those_of_the_installed_header_and_of_the_script() -> None:
    stale = [str(path) for path, text in gen_declarations.documents().items() if path.read_text("utf-8") != text]
    assert not stale, "run `python scripts/gen_declarations.py`"


def plain(declared: FFI, kind: object) -> str:
    """The name of a C type; cffi says `struct X` in one mode and `X` in the other."""
    return re.sub(r"\b(struct|enum) ", "", declared.typeof(kind).cname if isinstance(kind, str) else str(kind.cname))  # type: ignore[attr-defined]


def layout(declared: FFI, name: str) -> object:
    kind = declared.typeof(name)
    if kind.kind != "struct":
        return plain(declared, name), declared.sizeof(kind)
    return declared.sizeof(kind), [(field, part.offset, plain(declared, part.type)) for field, part in kind.fields]


def test_types_have_the_layout_that_the_header_gives_them(parsed: FFI) -> None:
    assert len(USED) > 20
    assert {name: layout(ffi, name) for name in USED} == {name: layout(parsed, name) for name in USED}


def test_functions_have_the_prototype_that_the_header_gives_them(parsed: FFI) -> None:
    theirs = parsed.dlopen(str(next(resources().glob("*wgpu_native*"))))
    assert len(FUNCTIONS) > 25
    ours = {name: plain(ffi, ffi.typeof(getattr(lib, name))) for name in FUNCTIONS}
    assert ours == {name: plain(parsed, parsed.typeof(getattr(theirs, name))) for name in FUNCTIONS}


def test_numbers_are_the_headers() -> None:
    text = (resources() / HEADER).read_text("utf-8")
    for name, number in (("Vulkan", wgpu_native._VULKAN), ("Metal", wgpu_native._METAL), ("DX12", wgpu_native._DX12)):
        shift = re.search(rf"WGPUInstanceBackend_{name} = 1 << (\d+);", text)
        assert shift is not None
        assert 1 << int(shift[1]) == number
    for name in ("MAP_READ", "MAP_WRITE", "COPY_SRC", "COPY_DST", "STORAGE", "QUERY_RESOLVE"):
        assert getattr(lib, f"WGPUBufferUsage_{name.title().replace('_', '')}") == getattr(objects, name)
    # which only Dawn has
    assert set(wgpu_native.WgpuNative().features) == set(info.FEATURES) - {"subgroup-matrix", "subgroup-size-control"}


def test_another_header_is_parsed() -> None:
    code = """
from ort_gpu_ep.webgpu import declarations
declarations.HEADER_SHA256 = "of another wgpu-py"
from ort_gpu_ep.device import adapter
from ort_gpu_ep.webgpu import library
assert library.ffi is not declarations.ffi
print(len(adapter.adapters()), type(adapter.request_device(*adapter.choose(""))).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(objects.enumerate_adapters())), "Device"]


def test_what_is_refused_is_raised_by_the_call_and_by_no_later_one() -> None:
    info, raw = choose("")
    device = request_device(info, raw)
    with pytest.raises(GPUValidationError, match="unknown_function"):
        device.create_shader_module("bad", "@compute @workgroup_size(1) fn main() { unknown_function(); }")
    before = objects.live()["Buffer"]
    with pytest.raises(GPUError, match=r"[Uu]sage"):
        device.create_buffer("bad", 256, objects.MAP_READ | objects.MAP_WRITE | objects.STORAGE)
    assert objects.live()["Buffer"] == before
    buffer, encoder = device.create_buffer("no source", 256, objects.COPY_DST), device.create_command_encoder()
    native.copy_buffer(encoder, buffer.handle, 0, buffer.handle, 0, 256)
    with pytest.raises(GPUValidationError):
        native.finish(encoder)
    assert device.create_buffer("good", 256, objects.STORAGE).size == 256
    with pytest.raises(AttributeError):
        checked.wgpuNoSuchFunction()


def test_a_loss_is_told_to_the_gpu_of_that_device_alone() -> None:
    info, raw = choose("")
    first, second = (Gpu(info, request_device(info, raw), limits_of(raw)) for _ in range(2))
    message = ffi.new("WGPUStringView *")
    held = ffi.new("char[]", b"first line\nit fell off the bus")
    message.data, message.length = held, len(held) - 1
    for reason in (lib.WGPUDeviceLostReason_Destroyed, lib.WGPUDeviceLostReason_Unknown):
        assert not first.lost
        objects._on_loss(ffi.NULL, reason, message[0], ffi.cast("void *", first.device.number), ffi.NULL)
    assert first.lost == "it fell off the bus"
    assert not second.lost


def test_a_destroyed_device_is_not_a_lost_one() -> None:
    info, raw = choose("")
    gpu = Gpu(info, request_device(info, raw), limits_of(raw))
    device = gpu.device
    gpu.finish()
    device.destroy()
    lib.wgpuDevicePoll(device.handle, True, ffi.NULL)
    assert not gpu.lost
    assert native.is_lost(device, GPUError("anything"))
