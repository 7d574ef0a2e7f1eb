"""A model that onnxruntime's CPU has no kernel for runs on the GPU, with whatever placement does not forbid it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, NotImplemented

import ort_gpu_ep
from tests.ops.single_node import model_of
from tests.plugin.cases import assert_close, batches, make_model, node, reference
from tests.session.random_graphs import quiet


def session_of(model: bytes, **options: object) -> Any:
    return ort_gpu_ep.InferenceSession(model, quiet(), provider_options=options)


@pytest.mark.parametrize(
    "options",
    [{}, {"placement": "auto", "adapter": "software"}, {"placement": "gpu"}, {"isolation": "process"}, {"strict": 1}],
    ids=str,
)
def test_it_runs_on_the_gpu(
    options: dict[str, object], rng: np.random.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ort_gpu_ep"):
        session = session_of(batches(1), **options)
    assert ("onnxruntime's CPU can't run this model" in caplog.text) == ("gpu" not in options.values())
    for _ in range(2):
        x = rng.normal(size=(3, 5, 12)).astype("f")
        (h,) = session.run(None, {"x": x})
        assert_close([h.transpose(1, 0, 2)], reference(batches(0), x=x.transpose(1, 0, 2)))
    assert session.explain().count("gpu") == 1
    assert session.stats()["fallbacks"] == 0


@pytest.mark.parametrize("options", [{"placement": "cpu"}, {"isolation": "process", "placement": "cpu"}], ids=str)
def test_placement_cpu_means_the_cpu(options: dict[str, object]) -> None:
    with pytest.raises(Fail, match="layout"):
        session_of(batches(1), **options)


def test_what_neither_can_run_is_refused_by_the_first_of_them() -> None:
    unknown = make_model([node("Foo", "x", "y", domain="com.microsoft")], ["x"], ["y"])
    with pytest.raises((Fail, NotImplemented), match="Foo") as seen:
        session_of(unknown)
    assert seen.value.__suppress_context__ or seen.value.__context__ is None


@pytest.mark.parametrize(
    "options",
    [{}, {"placement": "gpu"}, {"strict": 1}, {"isolation": "process"}, {"placement": "gpu", "strict": 1}],
    ids=str,
)
def test_what_neither_takes_is_said_by_name_with_our_reason(options: dict[str, object]) -> None:
    made, _ = model_of(
        "GroupNorm",
        (np.zeros((1, 4, 4, 6), "f"), np.zeros(6, "f"), np.zeros(6, "f")),
        domain="com.microsoft",
        groups=2,
        activation=2,
        name="norm",
    )
    with pytest.raises(
        NotImplemented, match=r"no provider .* takes GroupNorm.*norm: ATTRIBUTE.*activation 2.*Try"
    ) as seen:
        session_of(made.SerializeToString(), **options)
    assert isinstance(seen.value, ort_gpu_ep.GpuEpError)


def test_with_placement_cpu_it_is_onnxruntimes_word() -> None:
    made, _ = model_of(
        "BiasAdd", (np.zeros((1, 4, 8), "f"), np.zeros(8, "f"), np.zeros((1, 4, 8), "f")), domain="com.microsoft"
    )
    with pytest.raises((Fail, NotImplemented), match="BiasAdd") as seen:
        session_of(made.SerializeToString(), placement="cpu")
    assert not isinstance(seen.value, ort_gpu_ep.GpuEpError)
