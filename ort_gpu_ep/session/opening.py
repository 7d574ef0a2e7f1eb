"""Decisions before a session is created: which providers, whether there is an adapter, who chooses between
candidates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onnxruntime import ExecutionMode, SessionOptions

from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device.info import pick
from ort_gpu_ep.errors import AdapterError, ConfigError, UnfitAdapterError
from ort_gpu_ep.placement.source import Source, settings_lock
from ort_gpu_ep.plugin import CPU_PROVIDER, EP_NAME, too_old
from ort_gpu_ep.plugin.memory import FORKED, memory
from ort_gpu_ep.plugin.plain import COMPILES, NOT_COMPILED
from ort_gpu_ep.plugin.state import say_once
from ort_gpu_ep.private import copied_settings
from ort_gpu_ep.processes import known as processes
from ort_gpu_ep.processes.interrupts import load
from ort_gpu_ep.session.early import known_verdict, unfit

if TYPE_CHECKING:
    from ort_gpu_ep.health.open_adapter import Uses
    from ort_gpu_ep.isolation.remote import Lease
    from ort_gpu_ep.load import Sampler
    from ort_gpu_ep.placement.runner import Runner

IDLE_PROVIDER = "AzureExecutionProvider"
"""It runs its own operators only; a list with it leaves the same choice as one without."""

MODULES = ("ort_gpu_ep.plugin.explain", "ort_gpu_ep.plugin.factory")
"""What a session with a GPU needs, with all that makes partitions."""

SHARE = 8
"""Of so many cores, one is left to the search; runs on the CPU take an eighth longer at most meanwhile."""

THREAD_ENTRIES = ("session.intra_op_thread_affinities", "session.intra_op.allow_spinning")
"""Entries of SessionOptions by which a program says where its threads run, or that they don't spin."""

EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
"""An entry of SessionOptions: where external data of a model in memory lie."""

ORT_FORMAT = (
    "models in ORT format run on the CPU, because onnxruntime would hand values in the GPU's memory to kernels of its "
    "own: give the "
    ".onnx file, or use isolation=process"
)


def asked_providers(
    providers: Sequence[Any] | None, options: Any, settings: Any
) -> tuple[list[str], list[dict[str, Any]]]:
    """Names and options of the providers, in step. Names may come as (name, options), as onnxruntime allows."""
    if providers is None:
        first = dict(options) if isinstance(options, Mapping) else dict(options[0]) if options else {}
        return ([EP_NAME], [first]) if forbids_cpu(settings) else ([EP_NAME, CPU_PROVIDER], [first, {}])
    names, all_options = [], []
    extra = list(options or [{}] * len(providers)) if not isinstance(options, Mapping) else [options]
    for i, provider in enumerate(providers):
        name, own = provider if isinstance(provider, tuple) else (provider, extra[i] if i < len(extra) else {})
        names.append(name)
        all_options.append(dict(own))
    return names, all_options


def forbids_cpu(settings: Any) -> bool:
    """Whether the session options say that no node may run on the CPU; onnxruntime then refuses the CPU provider in the
    list."""
    return _is_on(settings, "session.disable_cpu_ep_fallback")


def _is_on(settings: Any, name: str) -> bool:
    return settings is not None and entry(settings, name) == "1"


def entry(settings: Any, name: str) -> str | None:
    """An entry of SessionOptions; None where it is not set."""
    try:
        return str(settings.get_session_config_entry(name))
    except RuntimeError:
        return None


def without_ours(config: Config, model: Any, settings: Any) -> str:
    """Why a session can't have our provider on whatever adapter; empty where it can. It is said once.

    Raises: ConfigError with strict=1, or where the session options forbid the CPU.
    """
    why = ""
    if config.placement == "cpu":
        pass
    elif too_old():
        why = too_old()
    elif _is_on(settings, "session.disable_model_compile"):
        why = COMPILES
    elif _is_on(settings, "ep.context_enable"):
        why = NOT_COMPILED
    elif config.isolation != "process" and is_ort_format(model):
        why = ORT_FORMAT
    if why and (config.strict or forbids_cpu(settings)):
        raise ConfigError(why)
    if why:
        say_once(why)
    return why


def left_to_others(names: Sequence[str], options: Sequence[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """A session's providers and their options without ours; the CPU's is among them."""
    kept = {name: own for name, own in zip(names, options, strict=True) if name != EP_NAME}
    kept.setdefault(CPU_PROVIDER, {})
    return list(kept), list(kept.values())


def may_choose(names: Sequence[str], model: Any, settings: Any) -> bool:
    """Whether placement=auto has a choice: between ours and the CPU's provider, in this order, and several sessions can
    be made of a model.

    Not with onnxruntime's profile: it is to be of the session that the user made.
    """
    between = [name for name in names if name != IDLE_PROVIDER] == [EP_NAME, CPU_PROVIDER]
    return (
        between
        and isinstance(model, (str, bytes, os.PathLike))
        and not (settings is not None and settings.enable_profiling)
    )


def has_fixed_sizes(session: Any) -> bool:
    """Whether all input shapes are known."""
    return all(isinstance(d, int) and d >= 0 for i in session.get_inputs() for d in (i.shape or (None,)))


def checked(options: dict[str, Any]) -> Config:
    """The config of provider options, which become texts. Raises: ConfigError (onnxruntime would print it and go on),
    also for a Dawn that is not there.
    """
    config = resolve(options)
    if config.webgpu == "dawn":
        from ort_gpu_ep.webgpu.choice import check_dawn

        check_dawn(config.webgpu_library)
    for name, value in options.items():
        options[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return config


def is_ort_format(model: Any) -> bool:
    """Whether a model, a path or bytes, is what onnxruntime writes with session.save_model_format=ORT."""
    if isinstance(model, bytes):
        return model[4:8] == b"ORTM"
    # open() takes numbers, too: it would close a file of the program
    if not isinstance(model, (str, os.PathLike)):
        return False
    try:
        if not os.path.isfile(model):  # what a pipe gives is gone once read
            return False
        with open(model, "rb") as file:
            return file.read(8)[4:8] == b"ORTM"
    except (OSError, ValueError):
        return False  # onnxruntime says what is wrong with it


def look_for_gpu(config: Config, uses: Uses | None = None) -> tuple[bool, Lease | None, str]:
    """(whether these options can only mean the CPU, a lease of the worker if one has the GPU, why placement=gpu has no
    adapter).

    They can with placement=cpu, no adapter, or placement=auto on a software adapter nobody asked for. The session then
    does without our provider: an idle one costs ONNX Runtime 2-5 % of a run of a few microseconds. uses: of open_gpu,
    everything by default. Raises: AdapterError in strict mode and where an adapter was asked for that does not exist,
    else it is said once.
    """
    if config.placement == "cpu":
        return True, None, ""
    load("ort_gpu_ep.health.libraries")
    from ort_gpu_ep.health.libraries import settle

    settle(config)
    load(*MODULES)
    unasked = config.placement == "auto" and not config.adapter
    try:
        if config.isolation == "process":
            from ort_gpu_ep.isolation.remote import Lease, open_remote

            lease = Lease(open_remote(config))
            if not (unasked and lease.gpu.info.is_software):
                return False, lease, ""
            lease.end()
            return True, None, ""
        if memory.forked:
            raise AdapterError(FORKED)
        load("ort_gpu_ep.health.open_adapter")
        from ort_gpu_ep.health.enumeration import look
        from ort_gpu_ep.health.open_adapter import everything, open_gpu

        if unasked and pick(look(config), config.adapter).is_software:
            return True, None, ""
        open_gpu(config, uses or everything)
        return False, None, ""
    except AdapterError as error:
        if config.strict or (config.adapter and not isinstance(error, UnfitAdapterError)):
            raise
        say_once(str(error))
        return True, None, str(error) if config.placement == "gpu" else ""


def begins_on_cpu(config: Config, names: Sequence[str], model: Any, settings: Any) -> bool:
    """Whether a session that chooses for itself is there with onnxruntime's CPU, and looks for a GPU later
    (starting.py).

    Not where exceptions are to be raised: with strict=1. Raises: ConfigError for a bad file of quirks, AdapterError for
    an adapter that was asked for and is not there.
    """
    if config.placement != "auto" or config.strict or config.tune or not may_choose(names, model, settings):
        return False
    if config.quirks:
        from ort_gpu_ep.health.quirks import load

        load(config.quirks)
    if config.adapter:
        if config.health == "off" and config.isolation == "process":
            return False  # only the worker may load drivers
        from ort_gpu_ep.health.enumeration import look

        pick(look(config), config.adapter)
    return True


def stays_on_cpu(config: Config) -> bool:
    """Whether an earlier look, or the lack of any driver, leaves a session that chooses for itself only the CPU; that
    is said once."""
    from ort_gpu_ep.health.enumeration import known
    from ort_gpu_ep.webgpu.missing import no_driver

    if why := unfit(config):
        say_once(f"the adapter is not used: {why}")
        return True
    if config.adapter:
        return False
    try:
        adapters = known(config)
        if adapters is not None:
            return pick(adapters, "").is_software
        why = no_driver(os.environ)
        if why:
            say_once(why)
        return bool(why)
    except AdapterError as error:  # there is none, or drivers failed
        say_once(str(error))
        return True


def threads_beside_search(settings: Any) -> int:
    """Threads of a session on the CPU that leave cores to the search for a GPU; 0 where onnxruntime's number of them is
    to stay.

    By default it has as many as there are cores, and they spin between runs: the search, and all else that starts then,
    gets little of a core, whatever its priority. Not with fewer than SHARE cores, nor where each core runs two threads,
    nor where the program says what it wants.
    """
    cores = processes.physical_cores()
    if not SHARE <= cores == os.cpu_count():
        return 0
    threads = cores - cores // SHARE
    if settings is None:
        return threads
    with settings_lock:
        said = settings.intra_op_num_threads
    said = said or not settings.use_per_session_threads or any(entry(settings, n) for n in THREAD_ENTRIES)
    return 0 if said or settings.execution_mode != ExecutionMode.ORT_SEQUENTIAL else threads


def own_settings(settings: Any) -> Any:
    """A copy of SessionOptions (new ones for None), without providers and libraries of custom operators, which
    onnxruntime copies not."""
    if settings is None:
        return SessionOptions()
    with settings_lock:
        # what is made for the copy would begin a file
        profiling, settings.enable_profiling = settings.enable_profiling, False
        try:
            copy = copied_settings(settings)
        finally:
            settings.enable_profiling = profiling
    copy.enable_profiling = profiling
    return copy


@contextmanager
def with_threads(settings: Any, threads: int) -> Iterator[Any]:
    """SessionOptions (new ones for None) with so many threads; 0: as they are. Another thread may make a session of the
    same."""
    if not threads:
        yield settings
        return
    settings = SessionOptions() if settings is None else settings
    with settings_lock:
        settings.intra_op_num_threads = threads
        try:
            yield settings
        finally:
            settings.intra_op_num_threads = 0


def is_decided(config: Config, model: Source, settings: Any, uses: Uses) -> bool:
    """Whether all is known that another process could find out: adapters, a verdict for such a model (uses: of
    open_gpu), and what was decided for this one. Loads no driver.
    """
    last = known_verdict(config)
    if last is None:
        return False
    from ort_gpu_ep.health.verdicts import wanted

    device, verdict = last
    if verdict.late and wanted(verdict.late, uses(device)):
        return False
    from ort_gpu_ep.placement.decisions import Decisions, key_of, speed_options

    isolated = " isolated" if config.isolation == "process" else ""
    key = key_of(model.path_or_bytes, device + isolated, settings, speed_options(config), model.digest())
    return Decisions(config.cache_path, key).found is not None


def sampler_for(config: Config) -> tuple[Sampler | None, bool]:
    """What tells the load of the adapter that these options mean, None with load=off; whether it is a software one."""
    from ort_gpu_ep.load import open_sampler  # only here: a session that is not to choose does not load it

    if config.isolation == "process":
        from ort_gpu_ep.isolation.remote import open_remote

        remote = open_remote(config)
        return open_sampler(remote.info, config.load), remote.info.is_software
    from ort_gpu_ep.device.adapter import order_among_equals
    from ort_gpu_ep.device.timed_dispatch import LazyTimedDispatch
    from ort_gpu_ep.health.open_adapter import open_gpu

    info = open_gpu(config).info
    return open_sampler(info, config.load, LazyTimedDispatch(info), order_among_equals(info)), info.is_software


def make_runner(
    model: Source, settings: Any, options: Mapping[str, str], kwargs: Mapping[str, Any], config: Config
) -> Runner:
    from ort_gpu_ep.placement.runner import Runner

    sampler, software = sampler_for(config)
    if config.isolation == "process":
        from ort_gpu_ep.isolation.remote import open_remote
        from ort_gpu_ep.kernels.profile import GUESSED

        remote = open_remote(config)
        return Runner(
            model,
            settings,
            options,
            kwargs,
            config,
            f"{remote.key} isolated",
            lambda whole: GUESSED,
            remote.uses,
            sampler,
            software,
        )
    from ort_gpu_ep.calibration import profile_of
    from ort_gpu_ep.health.open_adapter import open_gpu
    from ort_gpu_ep.health.verdicts import key_of

    gpu = open_gpu(config)
    return Runner(
        model,
        settings,
        options,
        kwargs,
        config,
        key_of(gpu.info),
        lambda whole: profile_of(gpu, config, whole=whole),
        gpu.uses,
        sampler,
        software,
    )
