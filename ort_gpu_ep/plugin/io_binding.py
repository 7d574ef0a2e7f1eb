"""IO bindings of our sessions: each run reads the bound values, whether they and the run are on the CPU or the GPU.

Where an input lies on another device than the session wants it, ONNX Runtime copies it when it is bound. What a program
writes into the bound array or OrtValue afterwards would be seen by a session on the CPU, and not by one on a GPU.
Sessions of ours answer alike: they bind such inputs anew before each run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.private import OrtBinding, OrtSession, OrtValueVector, behind, device_name
from ort_gpu_ep.providers import EP_NAME, STAND_IN_NAME

TENSORS = {
    f"tensor({name})": np.dtype(numpy)
    for name, numpy in (
        ("float", "f4"),
        ("double", "f8"),
        ("float16", "f2"),
        ("bool", "?"),
        ("int8", "i1"),
        ("uint8", "u1"),
        ("int16", "i2"),
        ("uint16", "u2"),
        ("int32", "i4"),
        ("uint32", "u4"),
        ("int64", "i8"),
        ("uint64", "u8"),
    )
}
"""ONNX Runtime's names of tensors that numpy has, too, and numpy's element types."""

STRINGS, STRING_TENSOR = 8, "tensor(string)"
"""ONNX's number of strings (TensorProto.DataType), and ONNX Runtime's name of a tensor of them."""

STRING_KINDS = "OSUV"
"""numpy's kinds of types that ONNX Runtime reads as strings."""

OURS = frozenset((EP_NAME, STAND_IN_NAME))
"""Names under which a session has our provider."""

HOST = "host"
"""Stands for an output that is to be a new value on the host."""

Bind: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]
"""A method of onnxruntime's class and its arguments. Not bound to the binding: a cycle would keep its values until a
collection."""


def check_output(name: str, kind: str, on_host: bool) -> None:
    """Raises RuntimeError for an output of strings that is wanted on a device. kind: onnxruntime's name of its type."""
    if STRING_TENSOR in kind and not on_host:  # also of sequences
        raise RuntimeError(
            f"Only binding non-string Tensors is currently supported: output {name!r} is a {kind}, wanted on a device. "
            "Bind it to 'cpu'."
        )


class CheckedBinding(OrtBinding):  # type: ignore[misc]  # onnxruntime has no types
    """onnxruntime's, for its own sessions with a provider whose memory is the device's.

    onnxruntime copies an input to where the session wants it when it is bound, and only a run looks at its type; it
    copies an output to where it is bound. It would make strings in the device's address space, and the process would
    end.
    """

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        inputs = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
        self._wants_host_memory = {i.name: where.name == "Cpu" for i, where in inputs}
        self._output_types = {o.name: o.type for o in session.get_outputs()}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self._check_array(name, arr_on_cpu)
        super().bind_cpu_input(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        if ortvalue.is_tensor() and ortvalue.data_type() == STRING_TENSOR:
            self._check_strings(name, STRING_TENSOR)
        super().bind_ortvalue_input(name, ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: Any = None,
    ) -> None:
        check_output(name, self._output_types.get(name, ""), device_type.lower() == "cpu")
        super().bind_output(name, device_type, device_id, element_type, shape, buffer_ptr)

    def _check_array(self, name: str, array: Any) -> None:
        if isinstance(array, np.ndarray) and array.dtype.kind in STRING_KINDS:
            self._check_strings(name, f"an array of {array.dtype}")

    def _check_strings(self, name: str, what: str) -> None:
        """Raises RuntimeError, as onnxruntime does for strings, for an input on the device."""
        if self._wants_host_memory.get(name) is False:
            raise RuntimeError(
                f"Only binding non-string Tensors is currently supported: input {name!r} was given as {what}, which "
                "onnxruntime reads as strings. Convert it first, as by .astype(numpy.float32)."
            )


class IOBinding(CheckedBinding):
    """onnxruntime's, for sessions that call `run_past`, or else `refresh`, before each run, and hold `lock` meanwhile:
    runs of one binding wait for each other.
    """

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.lock = threading.RLock()
        self._session = behind(session)  # onnxruntime keeps it, too, since 1.31
        self._dtypes = {i.name: TENSORS.get(i.type) for i in session.get_inputs()}
        self._elsewhere: dict[str, Bind] = {}
        # host memory, by the input or output that lies there
        self._read, self._written = dict[str, range](), dict[str, range]()
        # by name: arrays and OrtValues as they are bound; None: what onnxruntime alone knows
        self._given: dict[str, Any] = {}
        # by name, in onnxruntime's order: OrtValues, HOST; None: what onnxruntime alone knows
        self._wanted: dict[str, Any] = {}
        # outputs that onnxruntime is to make on the host, and has not made since it was told so
        self._fresh = set[str]()
        self._run: Any = None  # bound.py, for what is bound now
        self._is_answered = False  # the last run went past onnxruntime, which has none of its outputs

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self._check_array(name, arr_on_cpu)
        bind = OrtBinding.bind_cpu_input, (name, arr_on_cpu)
        if isinstance(arr_on_cpu, np.ndarray) and arr_on_cpu.flags.c_contiguous:
            address = arr_on_cpu.ctypes.data
            self._read[name] = range(address, address + arr_on_cpu.nbytes)
            self._bind(name, True, arr_on_cpu.dtype, bind)
            self._give(name, arr_on_cpu)
        else:  # on the CPU, too, it is copied now
            self._bind(name, self._wants_host_memory.get(name), None, bind)
            self._give(name, None)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        dtype = _dtype(element_type)
        if dtype.kind in "OSU" if dtype is not None else element_type == STRINGS:
            # onnxruntime says so itself since 1.30; before, it wrote to memory that nobody has given it, and the
            # process ended
            raise RuntimeError(
                f"Only binding non-string Tensors is currently supported: {name!r} was given as {element_type}. "
                "Use bind_ortvalue_input for strings."
            )
        bind = OrtBinding.bind_input, (name, device_type, device_id, element_type, list(shape), buffer_ptr)
        self._read[name] = _place(element_type, shape, buffer_ptr)
        self._bind(name, device_type == "cpu", dtype if buffer_ptr else None, bind)
        self._give(name, None)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        bind = OrtBinding.bind_ortvalue_input, (name, ortvalue)
        is_tensor = ortvalue.is_tensor()
        if is_tensor:
            kind = ortvalue.data_type()
            if kind == STRING_TENSOR:
                self._check_strings(name, kind)
            self._read[name] = _place_of(ortvalue)
            self._bind(name, device_name(ortvalue) == "cpu", TENSORS.get(kind), bind)
        else:
            self._bind(name, self._wants_host_memory.get(name), None, bind)
        self._give(name, ortvalue if is_tensor else None)

    def clear_binding_inputs(self) -> None:
        self._elsewhere.clear()
        self._read.clear()
        self._given.clear()
        self._run = None
        super().clear_binding_inputs()

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: Any = None,
    ) -> None:
        is_new = device_type == "cpu" and buffer_ptr is None
        if not (is_new and name in self._fresh):
            super().bind_output(name, device_type, device_id, element_type, shape, buffer_ptr)
            self._written[name] = _place(element_type, shape or (), buffer_ptr)
            self._fresh.add(name) if is_new else self._fresh.discard(name)
        self._want(name, HOST if is_new else None)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        super().bind_ortvalue_output(name, ortvalue)
        self._fresh.discard(name)
        self._written[name] = _place_of(ortvalue)
        self._want(name, ortvalue if ortvalue.is_tensor() else None)

    def clear_binding_outputs(self) -> None:
        super().clear_binding_outputs()
        self._written.clear()
        self._wanted.clear()
        self._fresh.clear()
        self._run, self._is_answered = None, False

    @property
    def keeps_inputs(self) -> bool:
        """Whether a run that fails half-way has left its inputs as they were: no output lies where an input does."""
        return not any(
            r.start < w.stop and w.start < r.stop for r in self._read.values() for w in self._written.values()
        )

    def get_outputs(self) -> Any:
        return self._answers() if self._is_answered else super().get_outputs()

    def get_outputs_as_ortvaluevector(self) -> Any:
        if not self._is_answered:
            return super().get_outputs_as_ortvaluevector()
        values = OrtValueVector()
        for value in self._answers():
            values.push_back(value._ortvalue)
        return values

    def copy_outputs_to_cpu(self) -> Any:
        return (
            [np.array(value.numpy()) for value in self._answers()]
            if self._is_answered
            else super().copy_outputs_to_cpu()
        )

    def run_past(self, session: Any, direct: Any) -> bool:
        """One run of a session past onnxruntime, if this is a binding of that one. direct: its way past, see
        plain.Shortcut.

        False, and nothing is done, where that is not possible. Raises what the partition does.
        """
        self._is_answered = False
        if self._session is not session:
            return False
        if self._run is None:
            self._run = direct.bound_run(self._dtypes, self._given, self._wanted)
        self._is_answered = self._run is not None and self._run.run(self._given)
        return self._is_answered

    def refresh(self) -> None:
        """Before a run of onnxruntime: binds the inputs that lie elsewhere than the session wants them to what they
        hold now."""
        self._is_answered = False
        self._fresh.clear()
        for bind, arguments in self._elsewhere.values():
            bind(self, *arguments)

    def _give(self, name: str, value: Any) -> None:
        """Notes an input. Arrays may be others in each run; all else is looked at anew."""
        before, self._given[name] = self._given.get(name), value
        if before is not value and not (isinstance(before, np.ndarray) and isinstance(value, np.ndarray)):
            self._run = None

    def _want(self, name: str, value: Any) -> None:
        """Notes an output: onnxruntime has no values of a run any more, and makes a new one for HOST."""
        before, self._wanted[name] = self._wanted.get(name), value
        self._is_answered = False
        if before is not value:
            self._run = None
        elif self._run is not None:
            self._run.forget(name)

    def _answers(self) -> list[Any]:
        assert self._run is not None, "it has made the last run"
        return [self._run.made[name] if value is HOST else value for name, value in self._wanted.items()]

    def _bind(self, name: str, on_host: bool | None, dtype: np.dtype[Any] | None, bind: Bind) -> None:
        """dtype: of the input, if known. One that is as the session wants it is copied before a run only: to bind it
        can't fail."""
        elsewhere = self._wants_host_memory.get(name) != on_host
        if not elsewhere or dtype is None or self._dtypes.get(name) != dtype:
            bind[0](self, *bind[1])
        if elsewhere:
            self._elsewhere[name] = bind
        else:
            self._elsewhere.pop(name, None)


def refresh(iobinding: Any) -> None:
    """See IOBinding.refresh. Other classes of bindings stay as they are."""
    if isinstance(iobinding, IOBinding):
        iobinding.refresh()


def take_over(refreshes: Callable[[Any], bool]) -> None:
    """From now on `onnxruntime.IOBinding(session)` makes ours for our provider. refreshes: whether a session calls
    `refresh`."""

    def new(cls: Any, session: Any = None, *_: Any, **__: Any) -> Any:
        if cls is OrtBinding and refreshes(session):
            cls = IOBinding
        elif cls is OrtBinding and isinstance(session, OrtSession) and not OURS.isdisjoint(session.get_providers()):
            cls = CheckedBinding
        return object.__new__(cls)

    OrtBinding.__new__ = new


def _place(element_type: Any, shape: Sequence[int], address: int | None) -> range:
    """Where a tensor lies; more than that for an element type that numpy has not."""
    dtype = _dtype(element_type)
    return (
        range(address, address + math.prod(shape) * (dtype.itemsize if dtype is not None else 16))
        if address
        else range(0)
    )


def _place_of(value: Any) -> range:
    if not value.is_tensor() or value.data_type() not in TENSORS:
        return range(0)
    return range(value.data_ptr(), value.data_ptr() + value.tensor_size_in_bytes())


def _dtype(element_type: Any) -> np.dtype[Any] | None:
    """The element type as numpy knows it; None for ONNX's numbers, and for what onnxruntime is to refuse."""
    try:
        return None if isinstance(element_type, int) else np.dtype(element_type)
    except TypeError:
        return None
