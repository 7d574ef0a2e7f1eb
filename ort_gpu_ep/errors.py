"""Exceptions of ort_gpu_ep.

GpuEpError
├ ConfigError(ValueError)             an option has an unknown name or a value outside its set
├ AdapterError                        no usable GPU adapter, or the one asked for does not exist
│ └ UnfitAdapterError                 it exists, and its probes or a known fault of its driver say that nothing may run on it
├ ModelError(ValueError)              a model file is missing, broken or not what it claims to be
├ TrainingError(ValueError)           a model can't be trained as asked, or training went wrong
├ ScoringError(ValueError)            a data set can't be scored as asked: what, where, and what to try
├ UnsupportedNodeError                an op builder declines a node; claim() turns it into a Decline
├ ShaderError                         a composed shader does not compile
├ DeviceError                         the GPU could not do what it was asked to
│ ├ OutOfDeviceMemoryError(MemoryError)
│ │ └ MemoryLimitError                the session's own memory_limit_mb
│ ├ DeviceLostError
│ ├ DeviceHangError
│ └ WrongResultError
├ InputError                          what a run brought has no answer; ONNX Runtime's CPU raises then, too
│ ├ IndexOutOfRangeError(IndexError)            an index, or a length, lies outside of what it selects from
│ ├ IntegerDivisionError(ZeroDivisionError)     an integer is divided by 0
│ └ MissingInputError(ValueError)               an input has no value
└ InternalError                       a rule of ours is broken; always a bug of this package
"""

from __future__ import annotations

from enum import StrEnum


class GpuEpError(Exception):
    """Base of every exception that this package raises on purpose.

    killed: the worker process was ended by a signal that people and systems send, and no driver: SIGKILL, SIGTERM,
    SIGINT or SIGHUP.
    """

    killed = False


class ConfigError(GpuEpError, ValueError):
    """A provider option or environment variable has an unknown name or value."""


class AdapterError(GpuEpError):
    """No usable GPU adapter, or the adapter asked for does not exist."""


class UnfitAdapterError(AdapterError):
    """The adapter exists, and its probes or a known fault of its driver say that nothing may run on it."""


class ModelError(GpuEpError, ValueError):
    """A model is missing, broken or not what it claims to be."""


class TrainingError(GpuEpError, ValueError):
    """A model can't be trained as it was asked for, or its training went wrong: the message says where, and what to
    try."""


class ScoringError(GpuEpError, ValueError):
    """A data set can't be scored as it was asked for: the message says which file, row or column, and what to try."""


class Code(StrEnum):
    """Why a node was declined."""

    OP = "OP"
    OPSET = "OPSET"
    DTYPE = "DTYPE"
    ATTRIBUTE = "ATTRIBUTE"
    RANK = "RANK"
    DYNAMIC_SHAPE = "DYNAMIC_SHAPE"
    NOT_CONSTANT = "NOT_CONSTANT"
    LIMIT = "LIMIT"
    COST = "COST"
    HOST = "HOST"
    DRIVER = "DRIVER"
    ERROR = "ERROR"


class UnsupportedNodeError(GpuEpError):
    """A builder declines a node. Never reaches a user: claim() turns it into a Decline."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code, self.reason = code, reason


class ShaderError(GpuEpError):
    """A composed shader does not compile; the message holds the source with line numbers."""


class DeviceError(GpuEpError):
    """The GPU could not do what it was asked to."""


class OutOfDeviceMemoryError(DeviceError, MemoryError):
    """A buffer does not fit into the device's memory budget."""


class MemoryLimitError(OutOfDeviceMemoryError):
    """A buffer does not fit into what the session may hold by memory_limit_mb: that says nothing about the adapter."""


class DeviceLostError(DeviceError):
    """The driver has dropped the device; nothing may be submitted to it any more."""


class DeviceHangError(DeviceError):
    """The GPU did not finish within the deadline."""


class WrongResultError(DeviceError):
    """The GPU's result differs from the CPU's by more than the tolerance. by_cpu: it is the CPU's that is wrong, by
    float64."""

    by_cpu = False


class InputError(GpuEpError):
    """What a run brought has no answer; ONNX Runtime's CPU raises then, too."""


class IndexOutOfRangeError(InputError, IndexError):
    """An input of a run brought an index, or the length of a sequence, that lies outside of what it selects from."""


class IntegerDivisionError(InputError, ZeroDivisionError):
    """An input of a run made an integer divisor 0."""


class MissingInputError(InputError, ValueError):
    """An input of a run has no value."""


class InternalError(GpuEpError):
    """A rule of this package is broken: please report it."""


def forget_frames(error: BaseException | None) -> None:
    """Drops the tracebacks of an exception that is kept: their frames would keep arrays and sessions alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
