"""Chooses the backend of a session by the option `isolation`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ort_gpu_ep.config import Config
    from ort_gpu_ep.runtime.backend import Backend

_MODULES = {"none": "ort_gpu_ep.plugin.local", "process": "ort_gpu_ep.isolation.backend"}
"""Loaded when they are wanted: with isolation=process, this process never loads wgpu."""


def open_backend(config: Config) -> Backend:
    """The adapter that the config asks for. Raises AdapterError, DeviceError, ConfigError."""
    from ort_gpu_ep.health.libraries import settle

    settle(config)  # before a library is loaded
    backend: Backend = import_module(_MODULES[config.isolation]).open_backend(config)
    return backend
