"""What comes before a session: which providers are meant, whether there is an adapter for ours, who chooses between candidates."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device.info import pick
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.interrupts import uninterrupted
from ort_gpu_ep.isolation.remote import Lease, open_remote
from ort_gpu_ep.plugin import CPU_PROVIDER, EP_NAME
from ort_gpu_ep.profile import GUESSED

if TYPE_CHECKING:
    from ort_gpu_ep.load import Sampler
    from ort_gpu_ep.placement.runner import Runner

log = logging.getLogger("ort_gpu_ep")

IDLE_PROVIDER = "AzureExecutionProvider"
"""It runs its own operators only; a list with it leaves the same choice as one without."""

ORT_FORMAT = (
    "models in ORT format run on the CPU, because onnxruntime would hand values in the GPU's memory to kernels of its own: give the "
    ".onnx file, or use isolation=process")

_said: set[str] = set()


def asked_providers(providers: Sequence[Any] | None, options: Any, settings: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Names and options of the providers, in step. Names may come as (name, options), as onnxruntime allows."""
    if providers is None:
        given = dict(options) if isinstance(options, Mapping) else dict(options[0]) if options else {}
        return ([EP_NAME], [given]) if forbids_cpu(settings) else ([EP_NAME, CPU_PROVIDER], [given, {}])
    names, found = [], []
    extra = list(options or [{}] * len(providers)) if not isinstance(options, Mapping) else [options]
    for i, provider in enumerate(providers):
        name, own = provider if isinstance(provider, tuple) else (provider, extra[i] if i < len(extra) else {})
        names.append(name)
        found.append(dict(own))
    return names, found


def forbids_cpu(settings: Any) -> bool:
    """Whether the session options say that no node may run on the CPU; onnxruntime then refuses the CPU provider in the list."""
    try:
        return bool(settings is not None and settings.get_session_config_entry("session.disable_cpu_ep_fallback") == "1")
    except RuntimeError:   # the entry is not set
        return False


def may_choose(names: Sequence[str], model: Any, settings: Any) -> bool:
    """Whether placement=auto has a choice: between ours and the CPU's provider, in this order, and several sessions can be made of a model.

    Not with onnxruntime's profile: it is to be of the session that the user made.
    """
    between = [name for name in names if name != IDLE_PROVIDER] == [EP_NAME, CPU_PROVIDER]
    return between and isinstance(model, (str, bytes, os.PathLike)) and not (settings is not None and settings.enable_profiling)


def has_fixed_sizes(session: Any) -> bool:
    """Whether all input shapes are known."""
    return all(isinstance(d, int) and d >= 0 for i in session.get_inputs() for d in (i.shape or (None,)))


def checked(options: dict[str, Any]) -> Config:
    """The config of provider options, which become texts. Raises: ConfigError (onnxruntime would print it and go on)."""
    config = resolve(options)
    for name, value in options.items():
        options[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return config


def is_ort_format(model: Any) -> bool:
    """Whether a model, a path or bytes, is what onnxruntime writes with session.save_model_format=ORT."""
    if isinstance(model, bytes):
        return model[4:8] == b"ORTM"
    if not isinstance(model, (str, os.PathLike)):       # open() takes numbers, too: it would close a file of the program
        return False
    try:
        if not os.path.isfile(model):                   # what a pipe gives is gone once read
            return False
        with open(model, "rb") as file:
            return file.read(8)[4:8] == b"ORTM"
    except (OSError, ValueError):
        return False        # onnxruntime says what is wrong with it


def look_for_gpu(config: Config, model: Any) -> tuple[bool, Lease | None, str]:
    """(whether these options can only mean the CPU, a lease of the worker if one has the GPU, why placement=gpu has no adapter).

    They can with placement=cpu, no adapter, a model in ORT format, or placement=auto on a software adapter nobody asked for.
    The session then does without our provider: an idle one costs ONNX Runtime 2-5 % of a run of a few microseconds.
    Raises: AdapterError in strict mode and where an adapter was asked for, else it is said once.
    """
    if config.placement == "cpu":
        return True, None, ""
    unasked = config.placement == "auto" and not config.adapter
    try:
        if config.isolation != "process" and is_ort_format(model):
            raise AdapterError(ORT_FORMAT)
        if config.isolation == "process":
            lease = Lease(open_remote(config))
            if not (unasked and lease.gpu.info.is_software):
                return False, lease, ""
            lease.end()
            return True, None, ""
        uninterrupted(import_module, "ort_gpu_ep.health.open_adapter")       # half an import is not made up for by the next
        from ort_gpu_ep.health.enumeration import look
        from ort_gpu_ep.health.open_adapter import open_gpu

        if unasked and pick(look(config), config.adapter).is_software:
            return True, None, ""
        open_gpu(config)
        return False, None, ""
    except AdapterError as error:
        if config.strict or config.adapter:
            raise
        if str(error) not in _said:
            _said.add(str(error))
            log.warning("running on the CPU: %s", error)
        return True, None, str(error) if config.placement == "gpu" else ""


def sampler_for(config: Config) -> tuple[Sampler | None, bool]:
    """What tells the load of the adapter that these options mean, None with load=off; whether it is a software one."""
    from ort_gpu_ep.load import open_sampler  # only here: a session that is not to choose does not load it

    if config.isolation == "process":
        remote = open_remote(config)
        return open_sampler(remote.info, config.load), remote.info.is_software
    from ort_gpu_ep.device.adapter import order_among_equals
    from ort_gpu_ep.device.timed_dispatch import LazyTimedDispatch
    from ort_gpu_ep.health.open_adapter import open_gpu

    info = open_gpu(config).info
    return open_sampler(info, config.load, LazyTimedDispatch(info), order_among_equals(info)), info.is_software


def make_runner(model: Any, settings: Any, options: Mapping[str, str], kwargs: Mapping[str, Any], config: Config) -> Runner:
    from ort_gpu_ep.placement.runner import Runner

    path_or_bytes = model if isinstance(model, bytes) else os.fspath(model)
    sampler, software = sampler_for(config)
    if config.isolation == "process":
        remote = open_remote(config)
        return Runner(path_or_bytes, settings, options, kwargs, config, f"{remote.key} isolated", lambda: GUESSED, remote.uses, sampler,
                      software)
    from ort_gpu_ep.calibration import profile_of
    from ort_gpu_ep.health.open_adapter import open_gpu
    from ort_gpu_ep.health.verdicts import key_of

    gpu = open_gpu(config)
    return Runner(path_or_bytes, settings, options, kwargs, config, key_of(gpu.info), lambda: profile_of(gpu, config), gpu.uses, sampler,
                  software)
