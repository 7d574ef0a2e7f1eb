"""InferenceSession: onnxruntime's, with the GPU in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from ort_gpu_ep import plugin
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.adapter import pick
from ort_gpu_ep.errors import AdapterError, DeviceError
from ort_gpu_ep.explain import Explanation, explanation
from ort_gpu_ep.health.admission import open_gpu
from ort_gpu_ep.health.enumeration import look
from ort_gpu_ep.plugin import EP_NAME

log = logging.getLogger("ort_gpu_ep")

_CPU = "CPUExecutionProvider"
_said: set[str] = set()


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
    """A drop-in for onnxruntime.InferenceSession that runs on the GPU what is better there.

    path_or_bytes, sess_options, providers, provider_options, kwargs: as in onnxruntime. Without `providers` the session uses
    the GPU and the CPU, and `provider_options` may be one mapping of this package's options (see config.OPTIONS).

    Raises: ConfigError for an unknown option or value; with strict=1, AdapterError where there is no usable adapter and
    whatever kept the GPU from its part; onnxruntime's own exceptions for what it rejects.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        names, options = _providers(providers, provider_options, sess_options)
        self._state: plugin.SessionState | None = None
        self._cpu: Any = None
        self._cpu_lock = threading.Lock()
        self._cpu_options = sess_options
        self._asked: tuple[list[str], list[dict[str, Any]]] | None = None
        if EP_NAME in names:
            plugin.register()
            nothing_to_gain = _check_options(options[names.index(EP_NAME)])
            if nothing_to_gain and _CPU in names:
                self._asked, keep = (names, options), [i for i, name in enumerate(names) if name != EP_NAME]
                names, options = [names[i] for i in keep], [options[i] for i in keep]
        with plugin.capture() as states:
            try:
                super().__init__(path_or_bytes, sess_options, names, options, **kwargs)
            except Exception as error:
                _raise_cause(error, states)
                raise
        self._state = states[-1] if states else None
        if self._state is not None and self._state.strict and self._state.errors:
            raise self._state.errors[0]
        if self._state is None or not self._state.partitions:
            self.__class__ = _SessionOnCpu

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As onnxruntime's. If the GPU fails, the CPU answers with the same inputs; with strict=1 the failure is raised."""
        try:
            return super().run(output_names, input_feed, run_options)
        except Exception as error:
            cause = self._state.cause_of(error) if self._state else None
            if self._state is None or not isinstance(cause, DeviceError):
                raise
            if self._state.strict:
                raise cause from error
            self._state.record("fallback", "run", cause)
            return self._cpu_session().run(output_names, input_feed, run_options)

    def _cpu_session(self) -> Any:
        """The same model on the CPU only; made when it is first needed."""
        with self._cpu_lock:
            if self._cpu is None:
                model = self._model_path or self._model_bytes
                self._cpu = onnxruntime.InferenceSession(model, self._cpu_options, providers=[_CPU])
            return self._cpu

    def explain(self) -> Explanation:
        """Which node runs where and why, what crosses between the devices, and what memory it takes."""
        if self._asked is not None:     # the CPU was chosen before the graph was seen: ask the partitioner now
            with plugin.capture() as states:
                model = self._model_path or self._model_bytes
                onnxruntime.InferenceSession(model, self._cpu_options, *self._asked)
            self._state, self._asked = states[-1], None
        return explanation(self._state)

    def stats(self) -> dict[str, int]:
        """Counts since the session was created: copies between the devices by kind and bytes, runs answered by the CPU (fallbacks),
        moves to a new device after one was lost (renewals)."""
        if self._state is None:
            return {"fallbacks": 0}
        fallbacks = sum(e.kind == "fallback" for e in list(self._state.events))
        return {**self._state.copies.as_dict(), "fallbacks": fallbacks, "renewals": self._state.renewals}


class _SessionOnCpu(InferenceSession):
    """A session without partitions: nothing of ours is in the way of a run, not even half a microsecond of Python."""

    run = onnxruntime.InferenceSession.run


def _providers(providers: Sequence[Any] | None, options: Any, settings: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Names and options of the providers, in step. Names may come as (name, options), as onnxruntime allows."""
    if providers is None:
        given = dict(options) if isinstance(options, Mapping) else dict(options[0]) if options else {}
        return ([EP_NAME], [given]) if _forbids_cpu(settings) else ([EP_NAME, _CPU], [given, {}])
    names, found = [], []
    extra = list(options or [{}] * len(providers)) if not isinstance(options, Mapping) else [options]
    for i, provider in enumerate(providers):
        name, own = provider if isinstance(provider, tuple) else (provider, extra[i] if i < len(extra) else {})
        names.append(name)
        found.append(dict(own))
    return names, found


def _forbids_cpu(settings: Any) -> bool:
    """Whether the session options say that no node may run on the CPU; onnxruntime then refuses the CPU provider in the list."""
    try:
        return bool(settings is not None and settings.get_session_config_entry("session.disable_cpu_ep_fallback") == "1")
    except RuntimeError:   # the entry is not set
        return False


def _check_options(options: dict[str, Any]) -> bool:
    """Whether these options can only mean the CPU: placement=cpu, no adapter, or placement=auto on a software adapter.

    The session then does without our provider: an idle one costs ONNX Runtime 2-5 % of a run of a few microseconds.
    Raises: ConfigError (onnxruntime would print it and go on); AdapterError in strict mode, else it is said once.
    """
    config = resolve(options)
    for name, value in options.items():
        options[name] = str(int(value)) if isinstance(value, bool) else str(value)
    if config.placement == "cpu":
        return True
    try:
        if config.placement == "auto" and pick(look(config), config.adapter).is_software:
            return True
        open_gpu(config)
        return False
    except AdapterError as error:
        if config.strict or config.adapter:
            raise
        if str(error) not in _said:
            _said.add(str(error))
            log.warning("running on the CPU: %s", error)
        return True


def _raise_cause(error: Exception, states: list[plugin.SessionState]) -> None:
    """Raises the exception of ours behind one of onnxruntime's, if there is one."""
    for state in states:
        cause = state.cause_of(error)
        if cause is not None:
            raise cause from error
