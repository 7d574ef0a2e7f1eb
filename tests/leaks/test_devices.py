"""A device that nobody holds goes: its threads, its memory, and every object of wgpu-native."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import psutil
import pytest

import ort_gpu_ep
from ort_gpu_ep.device import Gpu, staging
from ort_gpu_ep.device.adapter import choose, limits_of, request_device
from ort_gpu_ep.webgpu import native, objects, waiting
from tests.patience import until
from tests.unit.graphs import model_of


def counts() -> dict[str, int]:
    """What wgpu-native holds, by type, what it is to write to, and the threads of the process; those that have waited
    for a device are kept, as many as it took.
    """
    gc.collect()
    gc.collect()  # what the first one freed was the last reference to a device, which is a cycle
    arrivals = sum(isinstance(each, native.Arrival) for each in gc.get_objects())
    return objects.live() | {"arrivals": arrivals, "threads": psutil.Process().num_threads() - len(waiting._idle)}


def new_gpu() -> Gpu:
    info, raw = choose("")
    return Gpu(info, request_device(info, raw), limits_of(raw))


def drop_a_command_buffer_that_was_never_submitted() -> None:
    gpu = new_gpu()
    buffer = gpu.allocate(256)
    encoder = gpu.device.create_command_encoder()
    objects.checked.wgpuCommandEncoderClearBuffer(encoder.handle, buffer.raw.handle, 0, buffer.nbytes)
    native.finish(encoder)


def drop_a_device_with_pooled_buffers() -> None:
    gpu = new_gpu()
    x, buffer = np.ones(64, "f"), gpu.allocate(256)
    gpu.upload(buffer, 0, x.ctypes.data, 256)
    gpu.download(buffer, 0, x.ctypes.data, 256)
    gpu.free(buffer)


def drop_a_lost_device_with_pending_work() -> None:
    gpu = new_gpu()
    source, target = gpu.allocate(256), gpu.allocate(256)
    gpu.copy(source, 0, target, 0, 256)
    gpu.lost = "for this test"
    gpu.flush()


def use(faults: str, verify: int = 1, runs: int = 4) -> None:
    """A session on a device of its own; runs with and without elements."""
    text = "(float[N, 4] x) => (float[N, 4] y) { s = Softmax(x) y = Tanh(s) }"
    session = ort_gpu_ep.InferenceSession(
        model_of(text).SerializeToString(), provider_options={"placement": "gpu", "faults": faults, "verify": verify}
    )
    assert session.state.gpu is not None
    for rows in (2, 2, 0, *[2] * (runs - 3)):
        session.run(None, {"x": np.ones((rows, 4), "f")})
    for table in (Gpu._open, Gpu._circuits):
        for key in [k for k in table if k[1] == faults]:
            del table[key]


def drop_a_session_with_large_inputs() -> None:
    made = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "large_nbytes", lambda gpu, nbytes: (made.append(nbytes), nbytes)[1])
        for faults in ("slow@1x", "lost@5", "hang@5"):
            use(f"{faults};seed=78", verify=0, runs=7)
    assert made


def drop_a_session() -> None:
    use("slow@1x;seed=77")


def drop_a_session_whose_device_was_lost() -> None:
    use("lost@3;seed=77")


def drop_a_session_whose_device_hung() -> None:
    use("hang@3;seed=77")


@pytest.mark.usefixtures("long_pauses", "brief_hangs")
@pytest.mark.parametrize(
    "act",
    [
        drop_a_command_buffer_that_was_never_submitted,
        drop_a_device_with_pooled_buffers,
        drop_a_lost_device_with_pending_work,
        drop_a_session,
        drop_a_session_with_large_inputs,
        drop_a_session_whose_device_was_lost,
        drop_a_session_whose_device_hung,
    ],
    ids=lambda act: act.__name__,
)
def test_nothing_of_a_dropped_device_stays(act: Callable[[], None]) -> None:
    act()
    before = counts()
    for _ in range(2):
        act()
    until(lambda: all(count <= before[kind] for kind, count in counts().items()), f"no more than {before}")
