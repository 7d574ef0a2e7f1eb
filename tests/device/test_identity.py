"""Which physical device an adapter is: by what the Vulkan loader tells of it, never by luck."""

from __future__ import annotations

import pytest

import ort_gpu_ep
from ort_gpu_ep import AdapterError
from ort_gpu_ep.device.adapter import adapters, choose
from ort_gpu_ep.device.identity import PhysicalDevice, identified, physical_devices
from ort_gpu_ep.device.info import AdapterInfo, pick

FIRST = PhysicalDevice("H200", 0x10DE, 0x2335, "11111111-2222-3333-4444-555555555555", "0000:18:00.0")
SECOND = PhysicalDevice("H200", 0x10DE, 0x2335, "aaaaaaaa-2222-3333-4444-555555555555", "0000:9a:00.0")
OTHER = PhysicalDevice("Graphics", 0x8086, 1, "bbbbbbbb-2222-3333-4444-555555555555", "0000:00:02.0")


def seen(index: int, device: PhysicalDevice, backend: str = "Vulkan") -> AdapterInfo:
    return AdapterInfo(index, device.name, "discrete", backend, "driver", device.vendor_id, device.device_id)


def test_the_loader_knows_what_the_session_would_get() -> None:
    found = adapters()
    assert [a.uuid for a in found] == [d.uuid for d in physical_devices()]
    assert choose(found[0].uuid)[0].uuid == found[0].uuid
    assert [a.uuid for a in ort_gpu_ep.adapters()] == [a.uuid for a in found]  # as another process has seen it


def test_equal_gpus_are_told_apart_by_the_order_that_both_lists_have() -> None:
    found = identified(
        [seen(0, FIRST), seen(1, SECOND), seen(2, OTHER), seen(3, FIRST, "D3D12")], [OTHER, FIRST, SECOND]
    )
    assert [a.pci for a in found] == [FIRST.pci, SECOND.pci, OTHER.pci, ""]


def test_nothing_is_guessed_where_the_lists_disagree() -> None:
    assert [a.pci for a in identified([seen(0, FIRST), seen(1, OTHER)], [FIRST, SECOND, OTHER])] == ["", OTHER.pci]


@pytest.mark.parametrize(
    "wanted", [SECOND.pci, "00000000:9A:00.0", SECOND.uuid, f"GPU-{SECOND.uuid}", SECOND.uuid.upper()]
)
def test_an_adapter_is_named_by_its_identity_as_nvidia_smi_writes_it(wanted: str) -> None:
    assert pick(identified([seen(0, FIRST), seen(1, SECOND)], [FIRST, SECOND]), wanted).index == 1


def test_an_identity_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(AdapterError, match=r"0000:77:00.0.*no such adapter.*0000:18:00.0.*PCI address or a UUID"):
        pick(identified([seen(0, FIRST)], [FIRST]), "0000:77:00.0")
