"""The original InferenceSession of onnxruntime, even if it is replaced later; its calls defer Ctrl-C."""

from __future__ import annotations

from typing import Any, Protocol

from ort_gpu_ep.plugin import values
from ort_gpu_ep.plugin.io_binding import IOBinding, check_output, take_over
from ort_gpu_ep.plugin.state import capture
from ort_gpu_ep.private import OrtSession as OrtSession
from ort_gpu_ep.private import behind
from ort_gpu_ep.processes.interrupts import uninterrupted

NOT_COMPILED = (
    "WgpuExecutionProvider writes no compiled models (EPContext nodes): what it makes of a model depends on the "
    "adapter, and on the shapes "
    "of runs; shaders and what was measured are kept in the cache folder (option cache_dir). Leave out "
    "ep.context_enable, or compile the "
    "model without this provider (ModelCompiler with placement=cpu)."
)

COMPILES = (
    "session.disable_model_compile=1 forbids providers that compile a part of the model, as WgpuExecutionProvider "
    "does: leave out that "
    "entry"
)


class Shortcut(Protocol):
    """A way past onnxruntime, see direct.py."""

    def run(self, output_names: Any, feeds: Any) -> list[Any] | None:
        """The answer, None where onnxruntime is to give it."""

    def passed(self, output_names: Any, feeds: Any) -> None:
        """onnxruntime has answered a run with these inputs and outputs."""

    def bound_run(self, dtypes: Any, given: Any, wanted: Any) -> Any:
        """How runs with what is bound get past onnxruntime, see io_binding.py; None where it is to make them."""

    def bound_passed(self) -> None:
        """onnxruntime has made a run with an IO binding."""


class PlainSession(OrtSession):  # type: ignore[misc]  # onnxruntime has no types
    """onnxruntime's session. A Ctrl-C takes effect when what it does is done: KeyboardInterrupt, and the session goes
    on.

    direct: how runs get past onnxruntime, None where they don't.
    """

    direct: Shortcut | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As onnxruntime's. Which of its optimisers the session must do without is known when it has been made: then it
        is made again."""
        with capture(bypasses=True) as states:
            uninterrupted(OrtSession.__init__, self, *arguments, **named)
        unwanted = {name for state in states for name in state.unwanted_optimizers}
        if not unwanted.issubset(named.get("disabled_optimizers") or ()):
            named["disabled_optimizers"] = unwanted.union(named.get("disabled_optimizers") or ())
            uninterrupted(OrtSession.__init__, self, *arguments, **named)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        direct = self.direct if run_options is None else None
        if direct is None:
            return uninterrupted(OrtSession.run, self, output_names, input_feed, run_options)
        answer = uninterrupted(direct.run, output_names, input_feed)
        if answer is None:
            answer = uninterrupted(OrtSession.run, self, output_names, input_feed, run_options)
            direct.passed(output_names, input_feed)
        return answer

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        uninterrupted(_run_bound, self, iobinding, run_options)

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        return uninterrupted(OrtSession.run_with_ort_values, self, output_names, input_dict_ort_values, run_options)

    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Any,
        feeds: Any,
        fetch_names: Any,
        fetches: Any,
        fetch_devices: Any,
    ) -> None:
        kinds = {o.name: o.type for o in self.get_outputs()}
        # onnxruntime says where there are too few
        for name, device in zip(fetch_names, fetch_devices, strict=False):
            check_output(name, kinds.get(name, ""), device.device_type() == device.cpu())
        super().run_with_ortvaluevector(run_options, feed_names, feeds, fetch_names, fetches, fetch_devices)


def _run_bound(session: Any, iobinding: Any, run_options: Any) -> None:
    if not isinstance(iobinding, IOBinding):
        OrtSession.run_with_iobinding(session, iobinding, run_options)
        return
    with iobinding.lock:
        direct = session.direct if run_options is None else None
        if direct is not None and iobinding.run_past(behind(session), direct):
            return
        iobinding.refresh()
        OrtSession.run_with_iobinding(session, iobinding, run_options)
        if direct is not None:
            direct.bound_passed()


def _refreshes(session: Any) -> bool:
    """Whether runs of a session with an IO binding go through PlainSession."""
    return isinstance(session, PlainSession) and type(session).run_with_iobinding is not OrtSession.run_with_iobinding


take_over(_refreshes)
values.take_over()
