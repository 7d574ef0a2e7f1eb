"""InferenceSession: onnxruntime's class, with this provider."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnxruntime
from onnxruntime import OrtValue

from ort_gpu_ep import plugin, private
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.errors import AdapterError, ConfigError, DeviceHangError, DeviceLostError
from ort_gpu_ep.ir.refused import add_remedy, conversion, remedy
from ort_gpu_ep.placement import CPU
from ort_gpu_ep.placement.candidates import Candidate
from ort_gpu_ep.placement.source import Source, not_written, with_profiler, write_optimized
from ort_gpu_ep.plugin import CPU_PROVIDER, EP_NAME
from ort_gpu_ep.plugin.fallback import BLOCKED, NO_KERNEL, NoProviderError, taken_by_nobody
from ort_gpu_ep.plugin.io_binding import refresh
from ort_gpu_ep.plugin.memory import FORKED, memory
from ort_gpu_ep.processes.interrupts import load, uninterrupted
from ort_gpu_ep.session.early import begin, uses_of
from ort_gpu_ep.session.opening import (
    EXTERNAL_FOLDER,
    asked_providers,
    begins_on_cpu,
    checked,
    entry,
    has_fixed_sizes,
    left_to_others,
    look_for_gpu,
    make_runner,
    may_choose,
    stays_on_cpu,
    threads_beside_search,
    with_threads,
    without_ours,
)
from ort_gpu_ep.session.refining import Refinement
from ort_gpu_ep.session.starting import Stage, Start

if TYPE_CHECKING:
    from ort_gpu_ep.isolation.remote import Lease
    from ort_gpu_ep.partitioner import Costs
    from ort_gpu_ep.placement.runner import Runner
    from ort_gpu_ep.plugin.explain import Explanation
    from ort_gpu_ep.profiling.result import RunProfile
    from ort_gpu_ep.tuning.measure import TuneResult

log = logging.getLogger("ort_gpu_ep")


class InferenceSession(plugin.PlainSession):
    """A drop-in for onnxruntime.InferenceSession that uses the GPU where that is faster.

    path_or_bytes, sess_options, providers, provider_options, kwargs: as in onnxruntime. Without `providers` the session
    uses the GPU and the CPU, and `provider_options` may be one mapping of this package's options.

    With placement=auto the session starts on onnxruntime's CPU provider. After the first run it measures in the
    background which side is faster, and then chooses for each size of the inputs. stays_on_cpu: why the GPU is not
    used, if that is unexpected.

    Raises: ConfigError for an unknown option or value; with strict=1, AdapterError if there is no usable adapter, and
    the exception that kept nodes from the GPU; onnxruntime's own exceptions for what it rejects.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._options: dict[str, Any] | None = None  # of our provider, as given; None without it
        self._theirs: frozenset[str] = frozenset()  # names of the attributes that onnxruntime sets
        self._start: Start | None = None  # what is found out beside the runs, while it is
        self._refinement: Refinement | None = None  # of what guesses placed
        self.stays_on_cpu = ""
        self._arguments = (path_or_bytes, sess_options, kwargs)
        self._before = frozenset((*vars(self), "_before"))
        if sess_options is not None and not isinstance(sess_options, onnxruntime.SessionOptions):
            super().__init__(path_or_bytes, sess_options)  # raises what onnxruntime raises for it
        try:
            self._open_any(providers, provider_options)
        except Exception as error:
            add_remedy(error, lambda said: remedy(path_or_bytes, said))
            raise

    def _open_any(self, providers: Any, provider_options: Any) -> None:
        """Opens with the providers of the arguments, else with those of the session options, else with the GPU and the
        CPU."""
        settings = self._arguments[1]
        self._asked_for = (providers, provider_options)
        if (
            providers is None
            and not provider_options
            and settings is not None
            and not plugin.too_old()
            and settings.has_providers()
        ):
            self._open(None, None)
            return
        names, options = asked_providers(providers, provider_options, settings)
        if EP_NAME in names:
            self._arguments = (self._arguments[0], plugin.exact_products(settings), self._arguments[2])
        try:
            self._open(names, options)
        except NO_KERNEL as refused:
            own = dict(zip(names, options, strict=True)).get(EP_NAME)
            if own is None or resolve(own).placement != "auto":
                raise
            own["placement"] = "gpu"
            try:
                self._open(names, options)
            except NoProviderError:
                raise
            except Exception:
                raise refused from None
            log.warning("placement=gpu, because onnxruntime's CPU can't run this model: %s", refused)

    def _open(self, names: list[str] | None, options: list[dict[str, Any]] | None) -> None:
        """Makes this the session that the providers and their options ask for; None: those that the session options
        name."""
        model, settings, kwargs = self._arguments
        runner: Runner | None = None
        threads = 0
        source = asked = lease = later = early = None
        trouble = self._forbidden = self.stays_on_cpu = ""
        self._options = None
        if self._start is not None:
            self._start.cancel()
        if self._refinement is not None:
            self._refinement.cancel()
        self._start = self._refinement = None
        if names is not None and options is not None and EP_NAME in names:
            self._options = dict(options[names.index(EP_NAME)])
            config = checked(options[names.index(EP_NAME)])
            self._forbidden = without_ours(config, model, settings)
            if self._forbidden:
                trouble = self._forbidden if config.placement == "gpu" else ""
                names, options = left_to_others(names, options)
        if names is not None and options is not None and EP_NAME in names:
            # the provider is registered when it is wanted (starting.py)
            if begins_on_cpu(config, names, model, settings):
                nothing_to_gain, later = True, None if stays_on_cpu(config) else options[0]
                threads = threads_beside_search(settings) if later is not None else 0
            else:
                source = _source_of(model, settings)
                uses = uses_of(config, source) if source is not None else None
                early = begin(config, model, uses) if config.placement == "gpu" and not config.tune else None
                plugin.ensure_registered()
                nothing_to_gain, lease, trouble = look_for_gpu(config, uses)
            if nothing_to_gain and CPU_PROVIDER in names:
                asked = names, options
                names, options = left_to_others(names, options)
            else:
                write_optimized(model, settings, kwargs)
                if config.tune and not trouble:
                    self._tune_once(config)
                if source is not None and config.placement == "auto" and may_choose(names, model, settings):
                    runner = make_runner(source, settings, options[0], kwargs, config)
                    names, options = runner.candidates.providers(runner.first)
        if source is None and (names is None or EP_NAME in names or asked is not None):
            source = _source_of(model, settings)
        with early.known() if early is not None else nullcontext():
            state = self._created(names, options, runner.candidates.costs if runner is not None else None, threads)
        self._state, self._runner, self._source, self._asked, self._lease, self._trouble = (
            state,
            runner,
            source,
            asked,
            lease,
            trouble,
        )
        self._fronts = weakref.WeakSet((private.behind(self),))
        self.direct = plugin.Direct.of(self, state)
        if runner is not None:
            runner.begin(self._front(runner.first), has_fixed_sizes(self), _weakly(self._become))
        elif later is not None and source is not None:
            self._start = Start(
                source,
                settings,
                later,
                kwargs,
                config,
                self._front(CPU),
                has_fixed_sizes(self),
                threads,
                _weakly(self._become),
                _weakly(self._settled),
            )
            weakref.finalize(self, _weakly(self._start.drop)).atexit = False
        elif type(self) is InferenceSession and state and source and names and _may_be_guessed(state):
            self._refinement = Refinement(source, settings, names, options or [], kwargs, _weakly(self._become))
            self.__class__ = _SessionByGuesses
        elif type(self) is InferenceSession and (state is None or not state.partitions):
            self.__class__ = _NewSessionOnCpu

    def _created(
        self,
        names: list[str] | None,
        options: list[dict[str, Any]] | None,
        costs: Costs | None,
        threads: int = 0,
    ) -> plugin.SessionState | None:
        """Makes onnxruntime's session; gives the state of our provider in it. Raises what kept the GPU from its part,
        with strict=1.

        threads: as of with_threads.
        """
        model, settings, kwargs = self._arguments
        with plugin.capture(costs, model) as states:
            try:
                unwritten = not_written(settings if names is not None and EP_NAME in names else None)
                with unwritten, with_threads(settings, threads) as settings:
                    super().__init__(model, settings, names, options, **kwargs)
            except Exception as error:
                _raise_cause(error, states)
                raise
        state = states[-1] if states else None
        if state is not None and state.strict and state.errors:
            raise state.errors[0]
        if (
            names is not None
            and EP_NAME in names
            and EP_NAME not in self.get_providers()
            and not (state is not None and state.errors)
        ):
            return self._created_without_others(names, options or [], costs)
        self._theirs = self._theirs or frozenset(vars(self)) - self._before
        return state

    def _created_without_others(
        self, names: list[str], options: list[dict[str, Any]], costs: Costs | None
    ) -> plugin.SessionState | None:
        """Another provider of the list failed, and onnxruntime has gone on with its own few: once more with those and
        ours.

        Raises AdapterError with strict=1, where that leaves ours out, too.
        """
        own = dict(zip(names, options, strict=True))
        there = self.get_providers()
        kept = [name for name in names if name == EP_NAME or name in there]
        kept += [name for name in there if name not in kept]
        if kept == names:
            if resolve(own[EP_NAME]).strict:
                raise AdapterError(f"onnxruntime made the session without {EP_NAME}, and said why on stdout")
            return None
        log.warning(
            "without %s, which onnxruntime can't use here", ", ".join(name for name in names if name not in kept)
        )
        return self._created(kept, [own.get(name, {}) for name in kept], costs)

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As in onnxruntime: recreates the session, on GPU and CPU if no providers are given. Raises RuntimeError for
        an unknown name."""
        there = [EP_NAME, *onnxruntime.get_available_providers()]
        for name in asked_providers(providers, None, None)[0] if providers else ():
            if name not in there and name not in onnxruntime.get_all_providers():
                raise RuntimeError(f"Unknown Provider Type: {name}. There are: {', '.join(dict.fromkeys(there))}.")
        if type(self) in (_SessionOnCpu, _NewSessionOnCpu, _SessionByGuesses):
            self.__class__ = InferenceSession
        self._open_any(providers, provider_options)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As in onnxruntime. If the GPU fails, the CPU answers from the same inputs; with strict=1 the failure is
        raised."""
        try:
            if self._runner is not None:
                if not any(isinstance(v, OrtValue) and not _is_on_cpu(v) for v in input_feed.values()):
                    return self._runner.run(output_names, input_feed, run_options)
                self._runner.bind()
            elif (start := self._start) is not None:
                if not any(isinstance(v, OrtValue) and not _is_on_cpu(v) for v in input_feed.values()):
                    return start.run(output_names, input_feed, run_options)
                start.wait(hurry=True)
                return self.run(output_names, input_feed, run_options)
            if self._state is not None:
                self._state.begin_run()
            try:
                return super().run(output_names, input_feed, run_options)
            except Exception as error:
                plugin.fall_back_or_raise(self._state, error)
                return self._cpu_session().run(output_names, input_feed, run_options)
        except Exception as error:
            add_remedy(error, lambda said: conversion(said, input_feed))
            raise

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> None:
        """As in onnxruntime, in a thread of its own that calls `run`."""
        private.check_inputs(self, list(input_feed))

        def answer() -> None:
            results, message = [], ""
            try:
                results = InferenceSession.run(self, output_names, input_feed, run_options)
            except Exception as error:  # onnxruntime gives it to the callback, too
                message = str(error)
            callback(results, user_data, message)

        threading.Thread(target=answer, name="ort_gpu_ep-run_async", daemon=True).start()

    def io_binding(self) -> Any:
        """As in onnxruntime. With placement=auto the session waits for its device, and all bound runs use its present
        candidate."""
        self._stay()
        return super().io_binding()

    if hasattr(plugin.OrtSession, "create_ortvalue_from_shape_and_type"):  # since onnxruntime 1.30

        def create_ortvalue_from_shape_and_type(
            self,
            shape: Sequence[int],
            element_type: Any,
            device_type: str,
            device_id: int = 0,
            vendor_id: int = -1,
        ) -> OrtValue:
            """As in onnxruntime. With placement=auto a value on a device is as one that is bound, and one in host
            memory is no session's: onnxruntime takes a session's values in no other one, and the runs may go to
            several.
            """
            if device_type == "cpu" and (self._runner is not None or self._start is not None):
                return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)
            self._stay()
            return super().create_ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def _stay(self) -> None:
        """With placement=auto: waits for the device, and from now on values can be bound to the present candidate."""
        if self._refinement is not None:
            self._refinement.cancel()
        if self._start is not None:
            self._start.wait(hurry=True)
        if self._runner is not None:
            self._runner.bind()

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """As in onnxruntime. Values that are bound on the device are not copied; inputs in host memory are read in each
        run, and again if the device is lost during the run.
        """
        mine = private.behind(self)
        bound = private.bound_session(iobinding, mine)
        # onnxruntime.IOBinding(session), before another candidate was chosen
        if bound is not mine and bound in self._fronts:
            with getattr(iobinding, "lock", None) or nullcontext():
                uninterrupted(refresh, iobinding)
                uninterrupted(bound.run_with_iobinding, private.behind_binding(iobinding), run_options)
            return
        if self._state is not None:
            self._state.begin_run()
        try:
            super().run_with_iobinding(iobinding, run_options)
        except Exception as error:
            # of our bindings only
            if not (self._lost_its_device(error) and getattr(iobinding, "keeps_inputs", False)):
                raise
            super().run_with_iobinding(iobinding, run_options)

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """As in onnxruntime. With placement=auto, a run with values on a device uses the candidate that io_binding()
        would use."""
        if self._runner is not None:
            if all(map(_is_on_cpu, input_dict_ort_values.values())):
                return self._runner.run(output_names, input_dict_ort_values, run_options, values=True)
            self._runner.bind()
        elif (start := self._start) is not None:
            if all(map(_is_on_cpu, input_dict_ort_values.values())):
                return start.run(output_names, input_dict_ort_values, run_options, values=True)
            start.wait(hurry=True)
            return self.run_with_ort_values(output_names, input_dict_ort_values, run_options)
        if self._state is not None:
            self._state.begin_run()
        try:
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)
        except Exception as error:
            if not self._lost_its_device(error):
                raise
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def _lost_its_device(self, error: Exception) -> bool:
        """Whether a run failed with its device, so that it can be done again from inputs that host memory has: then the
        CPU answers it."""
        cause = self._state.cause_of(error) if self._state is not None else None
        return (
            isinstance(cause, (DeviceLostError, DeviceHangError)) and self._state is not None and not self._state.strict
        )

    def ready(self) -> bool:
        """Whether the session has decided where it runs, which with placement=auto it measures in the background of the
        first runs, and no kernels on matrix units are being compiled for the sizes of its runs (option unit_plans).
        With placement=gpu, nodes that a guessed size or rank left to the CPU are decided on again after the first run.
        """
        refined = self._refinement is None or self._refinement.is_over
        return refined and (self._start is None or self._start.is_over) and self._wait_plans(0.0)

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Waits for both, at most `timeout_s`; returns `ready()`.

        Before the first run it opens the GPU with what is known about the model. If that is not enough, the first run
        measures the rest and takes longer.
        """
        begin_s = time.monotonic()
        if self._start is not None and not self._start.wait(timeout_s):
            return False
        if self._refinement is not None and not self._refinement.wait(timeout_s):
            return False
        return self._wait_plans(None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - begin_s)))

    def _wait_plans(self, timeout_s: float | None) -> bool:
        """Waits for kernels on matrix units; whether none are being compiled."""
        if self._state is None or memory.forked:
            return True
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        programs = [partition.program for partition in list(self._state.partitions) if partition.program is not None]
        return all(
            program.wait_plans(None if end_s is None else max(0.0, end_s - time.monotonic())) for program in programs
        )

    @property
    def state(self) -> plugin.SessionState | None:
        """What the provider knows of it: its device, its partitions, its events; None where it has none. For this
        package: programs have `explain` and `stats`.
        """
        return self._state

    @property
    def runner(self) -> Runner | None:
        """What chooses between its candidates; None where nothing is to be chosen, or not yet. For this package."""
        return self._runner

    @property
    def missing_gpu(self) -> str:
        """Why a session with placement=gpu has no GPU; empty if it has one, or needs none."""
        if memory.forked and self._state is not None and self._state.gpu is not None:
            return FORKED
        return self._trouble

    def profile(
        self,
        inputs: Mapping[str, Any] | None = None,
        runs: int = 21,
        progress: Callable[[str, float], None] | None = None,
    ) -> RunProfile:
        """Times runs on the GPU: each dispatch by the GPU's clock, compared with the adapter's limits, and the host's
        phases.

        inputs: of each run; guessed where none are given (guess.py). runs: counted. A session that chooses for itself,
        or has chosen the CPU, is made once more with placement=gpu; one with nodes on the CPU, once more with
        onnxruntime's profiler. progress: is called with what comes next and the part that is done. Raises ConfigError
        where nothing runs on a GPU of this process; what a run raises.
        """
        import ort_gpu_ep.partitioner.passes  # noqa: F401  fills the records of kernels: plans from disk load no rows
        from ort_gpu_ep.profiling.measure import profile_runs
        from ort_gpu_ep.profiling.nodes import profile_nodes

        state, session = self._state, self
        if self._runner is not None or self._asked is not None:
            session = self._on_gpu()
            state = session._state
        feeds = self.random_inputs() if inputs is None else inputs
        path = self._arguments[0]
        name = os.path.basename(path) if isinstance(path, (str, os.PathLike)) else "model"
        config = state.config if state is not None and state.config is not None else resolve(session._options)
        session.run(None, feeds)
        # kernels on matrix units, and what the first run's sizes show, are what further runs go by
        session.wait_ready()
        own = session._state if session._state is not None and session._state.partitions else None
        result = profile_runs(
            lambda: session.run(None, feeds),
            own.partitions if own else (),
            own.gpu if own else None,
            config,
            name,
            runs,
            progress,
        )
        if session.direct is not None:  # all outputs come from one partition
            return result
        nodes, note = profile_nodes(session._with_profiler, feeds)
        return replace(result, nodes=nodes, notes=(*result.notes, note) if note else result.notes)

    def _with_profiler(self, prefix: str) -> InferenceSession:
        """`_on_gpu` with onnxruntime's profiler on; its file's path begins with `prefix`."""
        with with_profiler(self._arguments[1], prefix):
            return self._on_gpu()

    def tune(
        self,
        inputs: Mapping[str, Any] | None = None,
        budget_s: float | None = None,
        fresh: bool = False,
        progress: Callable[[str, float], None] | None = None,
    ) -> TuneResult:
        """Measures which kernels are the fastest for these inputs on this adapter, and stores the result
        (docs/tuning.md).

        inputs: guessed where none are given (guess.py). budget_s: of running, 10 s by default. fresh: measure again
        what is stored. This session is recreated with the result, as by `set_providers`; sessions created from now on
        use it, too. Raises ConfigError where nothing runs on a GPU of this process, or its adapter has no timestamps.
        """
        from ort_gpu_ep.health.open_adapter import everything, open_gpu
        from ort_gpu_ep.tuning.measure import BUDGET_S, tune

        config = resolve(self._options)
        if self._options is None or config.isolation == "process":
            raise ConfigError(
                f"tune: this session has no GPU of this process; give it {EP_NAME} by name, with isolation=none."
            )
        feeds, gpu = self.random_inputs() if inputs is None else inputs, open_gpu(config, everything)
        result = tune(self._on_gpu, feeds, gpu, config, BUDGET_S if budget_s is None else budget_s, fresh, (), progress)
        self.set_providers(*self._asked_for)
        return result

    def random_inputs(
        self,
        seed: int = 0,
        sizes: Mapping[str, int] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """An array for each input, so that `session.run(None, session.random_inputs())` runs any model.

        Floats are normal; integers are indices of the table that they look up, or 0 and 1; masks are 1. Of the sizes
        that the model leaves open, those are taken that onnxruntime's CPU runs, of up to 12 sets that are tried; a
        model of more than 200 MiB is not tried.

        seed: of the numbers. sizes: of open dimensions, by their symbols. given: arrays that are taken as they are, by
        input. Raises ModelError for an input that nothing can be made up for, and for a model that refuses all sizes
        tried.
        """
        from ort_gpu_ep.session.random_inputs import random_inputs

        return dict(random_inputs(self.get_inputs(), self._arguments[0], given or {}, sizes or {}, {}, seed).feeds)

    def _on_gpu(self) -> InferenceSession:
        """The same model with all nodes on the GPU, whatever this session has chosen."""
        model, settings, kwargs = self._arguments
        options = {**(self._options or {}), "placement": "gpu", "tune": "0", "unit_plans": "wait"}
        session = InferenceSession(model, settings, None, options, **kwargs)
        if session._refinement is not None:  # what is measured does not become another session
            session._refinement.cancel()
        return session

    def _tune_once(self, config: Config) -> None:
        """For the option `tune`: measures a model that was not tuned on this adapter yet; a failure of that is a
        warning."""
        from ort_gpu_ep.health.open_adapter import everything, open_gpu, tuning_key
        from ort_gpu_ep.kernels import tuned
        from ort_gpu_ep.placement.decisions import key_of
        from ort_gpu_ep.tuning.measure import tune

        model, settings, _ = self._arguments
        if config.isolation == "process" or not isinstance(model, (str, bytes, os.PathLike)):
            log.warning(
                "tune=1 does nothing here: use isolation=none and a model by path or as bytes, or run "
                "`ort-gpu-ep tune` once."
            )
            return
        try:
            gpu = open_gpu(config, everything)
            name = key_of(model if isinstance(model, bytes) else os.fspath(model), tuning_key(gpu.info), settings, {})
            if name in tuned.read(config.cache_path, tuning_key(gpu.info)).models:
                return
            result = tune(self._on_gpu, self._on_gpu().random_inputs(), gpu, config, models=[name])
            log.info(
                "tuned in %.1f s: %d of %d kernels have another form",
                result.seconds,
                result.changed,
                len(result.choices),
            )
        except Exception as error:  # an untuned model is slower, not wrong
            log.warning("tune=1: not tuned, %s: %s", type(error).__name__, error)

    def explain(self, profile: bool | Mapping[str, Any] = False) -> Explanation:
        """Which node runs where and why, what is copied between the devices, and how much memory is used.

        profile: also times each dispatch, see `profile`; true, or the inputs of its runs.
        """
        report = self._explain()
        if profile is False:
            return report
        return replace(report, profile=self.profile(None if profile is True else profile))

    def _explain(self) -> Explanation:
        load("ort_gpu_ep.plugin.explain")
        # with it all that makes partitions: not where the CPU answers
        from ort_gpu_ep.plugin.explain import Explanation, explanation

        if self._start is not None and not self._start.is_over:
            if self._start.stage is not Stage.FIRST_RUN:
                why = f"placement: the CPU answers; the session waits for {self._start.stage.waits_for}"
                return Explanation("not open yet", (), (), (why,))
            self._start.wait()
        # the CPU was chosen before the graph was seen: ask the partitioner now
        if self._asked is not None and self._source is not None:
            plugin.ensure_registered()
            with plugin.capture(model=self._source.path_or_bytes) as states:
                self._source.session(private.first_settings_of(self), *self._asked, {})
            self._state, self._asked = states[-1], None
        if self._runner is not None:
            return self._runner.explain()
        report = explanation(self._state)
        return replace(report, adapter=f"none ({self._forbidden})") if self._forbidden else report

    def stats(self) -> dict[str, Any]:
        """Counts since the session was created, see docs/placement.md.

        runs; host_to_device, device_to_host, device_to_device and each with _nbytes: copies, weights apart; weights,
        weights_nbytes: constants that went to the device; fallbacks: runs answered by the CPU for the GPU; renewals:
        moves to a new device after one was lost; specialized: sizes that have a plan of their own; last_run: bytes of
        each copy of the last run by kind. With placement=auto sums over the candidates, their runs in
        `runs_by_candidate`, the load as it is read and the policy's view of it; until that is decided, `waits_for` says
        what the session waits for.
        """
        if (start := self._start) is not None:
            return {
                "fallbacks": 0,
                "renewals": 0,
                "runs": start.runs,
                "runs_by_candidate": {CPU: start.runs} if start.runs else {},
                "waits_for": start.stage.waits_for,
            }
        if self._runner is not None:
            return self._runner.stats()
        return self._state.stats() if self._state is not None else {"fallbacks": 0, "renewals": 0}

    def _cpu_session(self) -> Any:
        """The same model on the CPU only, for one run: its arena would keep that run's tensors, and the weights once
        more."""
        assert self._source is not None, "only a session with our provider asks"
        return self._source.session(
            private.first_settings_of(self), [CPU_PROVIDER], [{}], {"disabled_optimizers": [BLOCKED]}
        )

    def _front(self, name: str) -> Candidate:
        """What this session is now, as a candidate that stays when the session becomes another one."""
        plain = object.__new__(plugin.OrtSession if self._state is None else plugin.PlainSession)
        plain.__dict__.update({k: v for k, v in vars(self).items() if k in self._theirs})
        if self.direct is not None:
            plain.direct = self.direct
        return Candidate(name, plain, self._state)

    def _settled(self, runner: Runner | None, lease: Lease | None, why: str) -> None:
        """It was found out beside the runs what answers them from now on; None: the CPU alone."""
        self._lease, self.stays_on_cpu = lease, why
        if runner is not None:
            self._runner, self._asked = runner, None
        elif type(self) is InferenceSession:
            self.__class__ = _SessionOnCpu
        self._start = None

    def _become(self, candidate: Candidate) -> None:
        """Puts another C++ session behind this object: the memory of the one before is free when its last run ends."""
        uninterrupted(self.__dict__.update, private.state_of(candidate.session))
        self._fronts.add(private.behind(self))
        self._state, self.direct = candidate.state, getattr(candidate.session, "direct", None)


class _SessionOnCpu(InferenceSession):
    """A session without partitions: nothing of ours is in the way of a run, not even half a microsecond of Python."""

    run = plugin.OrtSession.run
    run_async = plugin.OrtSession.run_async
    run_with_iobinding = plugin.OrtSession.run_with_iobinding
    run_with_ort_values = plugin.OrtSession.run_with_ort_values


class _NewSessionOnCpu(_SessionOnCpu):
    """One before its first run: what most programs get wrong, they get wrong there."""

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        try:
            answer = super().run(output_names, input_feed, run_options)
        except Exception as error:
            add_remedy(error, lambda said: conversion(said, input_feed))
            raise
        if type(self) is _NewSessionOnCpu:
            self.__class__ = _SessionOnCpu
        return answer


class _SessionByGuesses(InferenceSession):
    """A session with placement=gpu before its first run, which shows the sizes that were guessed."""

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        answer = super().run(output_names, input_feed, run_options)
        if self._refinement is not None and self._state is not None:
            self._refinement.ran(self._state, input_feed)
        if type(self) is _SessionByGuesses:
            self.__class__ = InferenceSession
        return answer


def _may_be_guessed(state: plugin.SessionState) -> bool:
    """Whether a run may show what the placement of nodes follows from."""
    if state.config is None or state.config.placement != "gpu":
        return False
    return any(
        report.guessed or not all(part.exact for part in report.partitions)
        for report in state.reports
        if not report.nested
    )


def _source_of(model: Any, settings: Any) -> Source | None:
    """None for what is neither a path nor bytes."""
    if not isinstance(model, (str, bytes, os.PathLike)):
        return None
    folder = entry(settings, EXTERNAL_FOLDER) if settings is not None else None
    return Source(model if isinstance(model, bytes) else os.fspath(model), folder or "")


def _is_on_cpu(value: Any) -> bool:
    return not value.is_tensor() or private.device_name(value) == "cpu"


def _weakly(method: Any) -> Any:
    """A bound method without its object: nothing that a session holds may hold the session, or `del` would free nothing
    at once."""
    method_ref = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        bound = method_ref()
        if bound is not None:
            bound(*arguments)

    return call


def _raise_cause(error: Exception, states: list[plugin.SessionState]) -> None:
    """Raises the exception of ours behind one of onnxruntime's, if there is one."""
    for state in states:
        cause = state.cause_of(error)
        if cause is not None:
            raise cause from error
    nobodys = taken_by_nobody(error, (report for state in states for report in state.reports))
    if nobodys:
        raise NoProviderError(nobodys) from error
