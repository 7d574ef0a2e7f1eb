"""What a decoder can't be asked for is an error, as on ONNX Runtime's CPU, and what runs behind it is right; nothing
grows with the tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from models.language import language_model
from ort_gpu_ep.generation import Generator
from tests.session.test_language_models import (
    PROMPT,
    bound_step,
    bound_step_with,
    generated,
    prompt_of,
    session,
    shared_caches,
)

ROWS = 24


def attention(model: onnx.ModelProto) -> Any:
    return next(n for n in model.graph.node if n.op_type == "GroupQueryAttention")


def with_heads(heads: int) -> onnx.ModelProto:
    model = language_model(layers=1)
    next(a for a in attention(model).attribute if a.name == "num_heads").i = heads
    return model


def with_angles(count: int) -> onnx.ModelProto:
    model = language_model(layers=1)
    for tensor in model.graph.initializer:
        if tensor.name in ("cosines", "sines"):
            array = np.resize(onnx.numpy_helper.to_array(tensor), (1024, count))
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


@pytest.mark.parametrize(
    "made",
    [lambda: with_heads(5), lambda: with_heads(3), lambda: with_angles(24)],
    ids=["5 heads", "3 heads", "24 angles"],
)
def test_sizes_that_do_not_fit(made: Any) -> None:
    """Where ONNX Runtime's CPU raises, so does a session of ours. A head has 32 elements: 16 angles."""
    for placement in ("plain", "gpu"):
        with pytest.raises(Exception, match=r"head count|cos_cache|GroupQueryAttention"):
            generated(session(made(), placement), prompt_of(1))


def test_lengths_out_of_range_leave_the_session_as_it_is() -> None:
    """The caches that such a run was to change are refused from then on, also where nothing was written: other ones are
    right."""
    ours, plain = session(language_model(layers=1), "gpu"), session(language_model(layers=1), "plain")
    wanted, _ = generated(plain, prompt_of(3))
    caches, tokens = shared_caches(ours, ROWS), prompt_of(3)[None]
    token = np.array([wanted[:1]])
    for mask in (np.zeros((1, PROMPT + 1), np.int64), np.full((1, PROMPT + 1), 1000), np.full((1, PROMPT + 1), -5)):
        with pytest.raises(Exception, match=r"out of range|seqlens_k"):
            bound_step_with(ours, caches, token, mask)
        caches = shared_caches(ours, ROWS)
        assert bound_step(ours, caches, tokens, PROMPT)[0, -1].argmax() == wanted[0]
        assert bound_step(ours, caches, token, PROMPT + 1)[0, -1].argmax() == wanted[1]


def test_an_empty_prompt() -> None:
    """An error, as on the CPU; and the next run is right."""
    ours, plain = session(language_model(layers=1), "gpu"), session(language_model(layers=1), "plain")
    for opened in (plain, ours):
        with pytest.raises(Exception, match=r"total_sequence_length must be positive|an empty tensor"):
            generated(opened, np.zeros(0, np.int64))
    assert generated(ours, prompt_of(2))[0] == generated(plain, prompt_of(2))[0]


def test_caches_of_another_session() -> None:
    """Device memory is the process's: a session goes on from the caches that another one of the same model wrote."""
    one, other = session(language_model(), "gpu"), session(language_model(), "gpu")
    wanted, _ = generated(session(language_model(), "plain"), prompt_of(4))
    caches = shared_caches(one, ROWS)
    assert bound_step(one, caches, prompt_of(4)[None], PROMPT)[0, -1].argmax() == wanted[0]
    del one
    for k in range(3):
        assert bound_step(other, caches, np.array([[wanted[k]]]), PROMPT + 1 + k)[0, -1].argmax() == wanted[k + 1]


def test_caches_on_the_host_are_no_error() -> None:
    ours = session(language_model(layers=1), "gpu")
    caches = {
        n: onnxruntime.OrtValue.ortvalue_from_numpy(np.array(v.numpy())) for n, v in shared_caches(ours, ROWS).items()
    }
    wanted, _ = generated(session(language_model(layers=1), "plain"), prompt_of(5))
    assert bound_step(ours, caches, prompt_of(5)[None], PROMPT)[0, -1].argmax() == wanted[0]


def test_nothing_is_compiled_for_prompts_of_any_length() -> None:
    """Nor planned: 15 lengths behind those that have forms of their own, and 495 tokens, whose rows of a cache would be
    250 KiB."""
    made = Generator(language_model(layers=1), max_length=200, provider_options={"strict": 1})
    for count in (1, 2, 3, 4, 5, 40):
        list(made.generate(np.arange(count), max_new_tokens=3))
    gpu, (partition,) = made.session.state.gpu, made.session.state.partitions
    before, held_nbytes = (gpu.compiled, partition.program.planned), gpu.stats.allocated_nbytes
    for count in (6, 7, 9, 10, 13, 17, 19, 23, 31, 37, 38, 39, 8, 33, 21):
        assert len(list(made.generate(np.arange(count), max_new_tokens=20))) == 20
    assert len(list(made.generate(np.arange(5)))) == 195
    assert (gpu.compiled, partition.program.planned) == before
    assert gpu.stats.allocated_nbytes < held_nbytes + (64 << 10)
