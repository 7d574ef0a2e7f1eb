"""A callable for batches, and which adapter its process is to use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep import AdapterError, ModelError, ScoringError
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.scoring import Predictor, visible
from ort_gpu_ep.scoring.visible import Gpu, gpu, own_adapter
from tests.scoring.conftest import Data

GPUS = [
    gpu("0", " GPU-11111111-AAAA-3333-4444-555555555555", "00000000:18:00.0", "H200"),
    gpu("1", " GPU-12222222-bbbb-3333-4444-555555555555", "00000000:9A:00.0", "H200"),
]


def adapter(index: int, at: Gpu, **known: str) -> AdapterInfo:
    return AdapterInfo(index, at.name, "discrete", "Vulkan", "", visible.NVIDIA, 1, **known)


# not in nvidia-smi's order
ADAPTERS = (
    adapter(0, GPUS[1], pci=GPUS[1].pci),
    adapter(1, GPUS[0], uuid=GPUS[0].uuid),
    AdapterInfo(2, "llvmpipe", "software", "Vulkan", "", 1, 1),
)


def pick(text: str | None, adapters: Any = ADAPTERS, gpus: Any = GPUS, order: str = "") -> list[int] | None:
    environment = {
        **({} if text is None else {visible.VARIABLE: text}),
        **({"CUDA_DEVICE_ORDER": order} if order else {}),
    }
    found = visible.visible(adapters, environment, lambda: gpus)
    return None if found is None else [a.index for a in found]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, None),
        ("", []),
        ("-1", []),
        ("0", [1]),
        ("1", [0]),
        ("1,0", [0, 1]),
        ("GPU-12222222-bbbb-3333-4444-555555555555", [0]),
        ("GPU-11", [1]),
    ],
)
def test_a_gpu_is_found_by_what_it_is_not_by_its_place(text: str | None, wanted: list[int] | None) -> None:
    assert pick(text) == wanted


def mixed() -> list[Gpu]:
    return [GPUS[0], gpu("1", "GPU-1", "00000000:9A:00.0", "T4")]


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda: pick("2"), "has 2, the driver lists 2 GPUs"),
        (lambda: pick("GPU-1"), "which is several of"),
        (lambda: pick("MIG-1"), r"which is none of .* \(a part of a GPU, MIG"),
        (lambda: pick("0", gpus=mixed()), "set CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (lambda: pick("0", ADAPTERS[2:]), "the GPU at 0000:18:00.0: no adapter is known to be it; there are: llvmpipe"),
        (lambda: pick("0", (adapter(0, GPUS[0]),)), r"there are: H200 \(unknown place\)"),
    ],
)
def test_nothing_is_guessed(find: Callable[[], object], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        find()
    assert pick("0", gpus=mixed(), order="PCI_BUS_ID") == [1]


def test_without_the_variable_each_process_claims_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible, "_claimed", [])
    assert own_adapter(ADAPTERS[2:], {}, tmp_path) == "cpu"
    assert own_adapter(ADAPTERS, {visible.VARIABLE: ""}, tmp_path) == "cpu"  # none of NVIDIA's are ours
    assert [own_adapter(ADAPTERS, {}, tmp_path) for _ in range(2)] == ["0", "1"]
    with pytest.raises(AdapterError, match="all 2 adapters of this machine are claimed"):
        own_adapter(ADAPTERS, {}, tmp_path)
    for lock in visible._claimed:
        lock.close()


def test_a_predictor_keeps_what_is_no_input(data: Data) -> None:
    predict = Predictor(str(data.model), adapter="cpu")
    found = predict({"x": data.x[:5], "id": np.arange(5)})
    assert found.column_names == ["id", "y", "error"]
    np.testing.assert_allclose(np.stack(found.column("y").to_pylist()), data.answer[:5], atol=1e-4)
    assert found.column("error").null_count == 5
    ragged = np.array([row[: 8 - (k == 2)] for k, row in enumerate(data.x[:5].tolist())], object)
    found = predict({"x": ragged, "id": np.arange(5)})
    assert [e is None for e in found.column("error").to_pylist()] == [True, True, False, True, True]
    assert found.column("y").to_pylist()[2] is None


def test_a_predictor_of_bytes_on_the_adapter(data: Data) -> None:
    found = Predictor(data.model.read_bytes(), adapter="0")({"pixels": data.x[:7]})
    np.testing.assert_allclose(np.stack(found.column("y").to_pylist()), data.answer[:7], atol=1e-4)
    with pytest.raises(ModelError, match=r"model \(bytes\): not an ONNX file"):
        Predictor(b"nonsense", adapter="cpu")
    with pytest.raises(ScoringError, match="the batch: columns x=z: no column 'z'"):
        Predictor(data.model.read_bytes(), adapter="cpu", columns={"x": "z"})({"x": data.x})


@pytest.mark.parametrize("adapter", ["0", "cpu"])
def test_a_predictor_in_several_threads(data: Data, adapter: str) -> None:
    predict = Predictor(str(data.model), adapter=adapter)
    with ThreadPoolExecutor(4) as threads:
        parts = [slice(k % 5, k % 5 + 1 + k % 7) for k in range(24)]
        for part, found in zip(parts, threads.map(lambda p: predict({"x": data.x[p]}), parts), strict=True):
            np.testing.assert_allclose(np.stack(found.column("y").to_pylist()), data.answer[part], atol=1e-4)
