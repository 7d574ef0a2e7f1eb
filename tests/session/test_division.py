"""Integers divided by zero, and the smallest by -1: ONNX Runtime's own error where it raises, a defined answer where it
dies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from ort_gpu_ep.errors import IntegerDivisionError
from ort_gpu_ep.plugin.direct import RUNS_BEFORE
from tests.session.conftest import gpu_session, on_the_cpu
from tests.unit.graphs import model_of

TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
OPS = ("Div", "Mod", "Mod<fmod=1>")


def quiet() -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return settings


def divided(op: str, dtype: str, head: str = "", tail: str = "y = Identity(q)", **constants: Any) -> bytes:
    """x op z, with nodes before and behind it."""
    inputs = f"{dtype}[N] x" + ("" if "z" in constants else f", {dtype}[M] z")
    return bytes(
        model_of(
            f"({inputs}) => ({dtype}[N] y) {{ {head} q = {op}({'a' if head else 'x'}, z) {tail} }}", constants
        ).SerializeToString()
    )


def feeds(dtype: str, *divisors: int) -> dict[str, Any]:
    return {"x": np.array([7, 100, 3, 0, 1], dtype), "z": np.array(divisors, dtype)}


def message(error: BaseException) -> str:
    return str(error).partition("Status Message: ")[2]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPS)
def test_zero_raises_what_onnxruntime_raises(op: str, dtype: str) -> None:
    """Fused between two steps; by one divisor for all, and by one for each; through ONNX Runtime, and past it."""
    model = divided(op, dtype, "a = Add(x, x)", "y = Mul(q, q)")
    session = gpu_session(model, quiet())
    assert session.explain().count("cpu") == 0
    for _ in range(2):
        for bad in ((2, 0, 1, 5, 3), (2, 2, 2, 2, 0), (0,)):
            with pytest.raises(Fail) as want:
                on_the_cpu(model, feeds(dtype, *bad))
            with pytest.raises(Fail) as got:
                session.run(None, feeds(dtype, *bad))
            assert message(got.value) == message(want.value)
        for _ in range(RUNS_BEFORE + 1):
            for good in ((2, 3, 1, 5, 3), (3,)):
                np.testing.assert_array_equal(
                    session.run(None, feeds(dtype, *good))[0], on_the_cpu(model, feeds(dtype, *good))[0]
                )
    assert session.stats()["fallbacks"] == 6


def test_in_a_worker_too() -> None:
    session = gpu_session(divided("Div", "int32"), quiet(), isolation="process")
    with pytest.raises(Fail, match="zero"):
        session.run(None, feeds("int32", 0))
    np.testing.assert_array_equal(session.run(None, feeds("int32", 2))[0], [3, 50, 1, 0, 0])


def test_with_strict_it_is_an_exception_that_names_the_node() -> None:
    session = gpu_session(divided("Mod", "int64"), quiet(), strict="1")
    with pytest.raises(IntegerDivisionError, match=r"an integer is divided by 0 in Mod->y: look at"):
        session.run(None, feeds("int64", 0))
    np.testing.assert_array_equal(session.run(None, feeds("int64", 2))[0], [1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("op", "dtype", "z", "looked_at"),
    [
        ("Div", "int32", [3], ()),
        ("Mod", "int64", [-2], ()),
        ("Div", "float", [0], ()),
        ("Div", "int32", None, ("Div->y",)),
    ],
)
def test_nothing_is_looked_at_where_no_divisor_can_be_zero(
    op: str, dtype: str, z: list[int] | None, looked_at: tuple[str, ...]
) -> None:
    numpy = "float32" if dtype == "float" else dtype
    session = gpu_session(divided(op, dtype, **({} if z is None else {"z": np.array(z, numpy)})), quiet())
    session.run(None, {name: array for name, array in feeds(numpy, 1).items() if z is None or name == "x"})
    (plan,) = session.state.partitions[0].program.plans
    assert plan.reporting == looked_at


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_the_smallest_number_by_minus_one(dtype: str) -> None:
    """It stays what it is, and leaves nothing: two's complement. ONNX Runtime's CPU can't be asked, it ends the process
    (SIGFPE)."""
    least = np.iinfo(dtype).min
    given = {"x": np.array([least, least, 7, -7], dtype), "z": np.array([-1], dtype)}
    for op, want in (("Div", [least, least, -7, 7]), ("Mod", [0, 0, 0, 0]), ("Mod<fmod=1>", [0, 0, 0, 0])):
        np.testing.assert_array_equal(gpu_session(divided(op, dtype)).run(None, given)[0], want)
