"""Guessed inputs: sizes and values that the model's structure allows, and what is said of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.inputs.guess import Guess, guess, structure_of
from tests.unit.graphs import model_of


def guessed(model: Any, runs: bool = True, **given: Any) -> Guess:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    tries = (lambda feeds: session.run(None, dict(feeds))) if runs else None
    return guess(session.get_inputs(), structure_of(model), tries=tries, **given)


def test_integers_are_indices_of_the_table_that_they_look_up() -> None:
    model = model_of(
        "(int64[B, S] ids, int64[B, S] mask) => (y) { i = Cast<to=6>(ids) e = Gather(t, i) m = Cast<to=1>(mask) y = "
        "Identity(e) z = Neg(m) }",
        {"t": np.zeros((500, 4), "f")},
    )
    found = guessed(model)
    assert 100 < found.feeds["ids"].max() < 500
    assert found.feeds["mask"].tolist() == [[1] * 64]
    assert found.sizes == {"B": 1, "S": 64}
    assert "ids int64[1, 64] of " in found.line(0)
    assert "--dim B=N" in found.line(0)


def test_a_table_that_is_computed_from_bytes() -> None:
    model = model_of(
        "(int64[B, S] ids) => (y) { f = Cast<to=1>(t) e = Mul(f, s) y = Gather(e, ids) }",
        {"t": np.zeros((500, 4), np.int8), "s": np.ones((500, 1), "f")},
    )
    assert 100 < guessed(model).feeds["ids"].max() < 500


@pytest.mark.parametrize("text", ["u = Unsqueeze(x, last) y = Equal(u, n)", "y = OneHot(x, depth, two)"])
def test_numbers_of_a_class_are_below_the_number_of_classes(text: str) -> None:
    model = model_of(
        f"(int64[B, S] x) => (y) {{ {text} }}",
        {"n": np.arange(257), "last": np.array([-1]), "depth": np.array(257), "two": np.array([0, 1], "f")},
    )
    assert 100 < guessed(model).feeds["x"].max() < 257


def test_a_state_has_the_batch_in_the_middle() -> None:
    model = model_of("(float[N, L] x, float[2, M, 8] state) => (y, z) { y = Neg(x) z = Neg(state) }")
    assert guessed(model).feeds["state"].shape == (2, 1, 8)


def test_images_have_the_size_of_images() -> None:
    model = model_of("(float[N, 3, H, W] x) => (y) { y = Relu(x) }")
    assert guessed(model).feeds["x"].shape == (1, 3, 224, 224)
    assert guessed(model, sizes={"H": 8}).feeds["x"].shape == (1, 3, 8, 224)
    assert guessed(model_of("(float[N, H, W, 3] x) => (y) { y = Relu(x) }")).feeds["x"].shape == (1, 224, 224, 3)


def test_a_length_that_a_reshape_wants() -> None:
    model = model_of("(float[N, L] x) => (y) { y = Reshape(x, s) }", {"s": np.array([-1, 9, 37])})
    found = guessed(model)
    assert found.feeds["x"].shape == (1, 333)
    assert not found.refused


def test_a_length_that_a_window_wants() -> None:
    model = model_of("(float[N, 1, L] x) => (y) { y = Conv(x, w) }", {"w": np.zeros((2, 1, 512), "f")})
    assert guessed(model).feeds["x"].shape == (1, 1, 512)


def test_positions_within_a_short_table() -> None:
    model = model_of(
        "(int64[N, S] ids) => (y) { e = Gather(t, ids) y = Add(e, p) }",
        {"t": np.zeros((50, 4), "f"), "p": np.zeros((1, 16, 4), "f")},
    )
    assert guessed(model).feeds["ids"].shape in ((1, 16), (1, 1))


def test_scalars_and_caches_by_their_names() -> None:
    model = model_of(
        "(int64 sr, float[N, 2, past_length, 4] past, float[N, 2, S, 4] x) => (y, r) { y = Concat<axis=2>(past, x) r = "
        "Identity(sr) }"
    )
    found = guessed(model)
    assert found.feeds["sr"] == 16000
    assert found.feeds["past"].shape == (1, 2, 0, 4)


def test_a_model_that_refuses_all() -> None:
    found = guessed(model_of("(float[a, b] x, float[7, m] y) => (z) { z = Concat<axis=1>(x, y) }"))
    assert "Concat" in found.refused
    assert found.feeds["x"].shape == (1, 64)


def test_what_is_given_is_not_guessed() -> None:
    model = model_of("(float[N, S] x, float[N, S] y) => (z) { z = Add(x, y) }")
    found = guessed(model, given={"x": np.ones((3, 5), "f")})
    assert found.feeds["y"].shape == (3, 5)
    assert (found.guessed, found.sizes) == (("y",), {})


def test_a_type_that_nothing_can_be_made_up_for() -> None:
    value = SimpleNamespace(name="s", type="seq(tensor(float))", shape=[])
    with pytest.raises(
        ModelError, match=r"input 's' is a seq\(tensor\(float\)\): no random values for that; give --input s=FILE.npy"
    ):
        guess([value], structure_of(b""))


def test_the_seed_decides() -> None:
    model = model_of("(float[N, S] x) => (z) { z = Neg(x) }")
    one, again, other = (guessed(model, seed=s).feeds["x"] for s in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
