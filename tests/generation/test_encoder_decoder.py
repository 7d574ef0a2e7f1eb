"""EncoderDecoder with pairs as optimum exports them: ONNX Runtime's tokens, and caches that stay on the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ort_gpu_ep
from models.encoder_decoder import SIZES, decoders, encoder, merged_decoder
from ort_gpu_ep import EncoderDecoder
from ort_gpu_ep.errors import ConfigError, InputError, ModelError
from ort_gpu_ep.plugin.state import COPIES
from tests.decoder import decoder
from tests.encoder_decoder import BANDS, FRAMES, START, WORDS, Plain

TOKENS = 10


def models(merged: bool, sound: bool = False) -> list[onnx.ModelProto]:
    return [encoder(sound), *([merged_decoder(sound)] if merged else decoders(sound))]


def inputs_of(rng: np.random.Generator, sound: bool = False, length: int = 9) -> Any:
    return rng.standard_normal((BANDS, FRAMES)).astype("f") if sound else rng.integers(3, WORDS, length)


@pytest.fixture(scope="module", params=[False, True], ids=["two", "merged"])
def text(request: pytest.FixtureRequest) -> EncoderDecoder:
    return EncoderDecoder(*models(request.param), max_length=64, provider_options={"strict": 1})


@pytest.mark.parametrize("merged", [False, True], ids=["two", "merged"])
@pytest.mark.parametrize("sound", [False, True], ids=["text", "sound"])
def test_the_tokens_of_the_cpu(merged: bool, sound: bool, rng: np.random.Generator) -> None:
    pair, plain = EncoderDecoder(*models(merged, sound), provider_options={"strict": 1}), Plain(sound)
    for start in ([START], [START, 7, 30]):
        inputs = inputs_of(rng, sound)
        expected = plain.tokens(inputs, start, TOKENS)
        assert len({*expected}) > 3
        assert list(pair.generate(inputs, start, max_new_tokens=TOKENS)) == expected
    assert (
        list(pair.generate(inputs[None], np.array([start]), max_new_tokens=TOKENS, stop=expected[3:4]))
        == (expected[: expected.index(expected[3]) + 1])
    )
    assert not any(session.stats()["fallbacks"] for session in pair.sessions)


@pytest.mark.parametrize("options", [{"placement": "cpu"}, {"isolation": "process"}], ids=str)
def test_the_tokens_of_the_cpu_elsewhere(options: dict[str, Any], rng: np.random.Generator) -> None:
    pair, inputs = EncoderDecoder(*models(True), provider_options=options), inputs_of(rng)
    assert list(pair.generate(inputs, [START], max_new_tokens=TOKENS)) == Plain().tokens(inputs, [START], TOKENS)


def test_only_tokens_cross(text: EncoderDecoder, rng: np.random.Generator) -> None:
    """Both branches of a merged decoder run on the device, and cross-attention's keys and values are not copied."""
    for session in text.sessions:
        assert not [n.op for r in session.state.reports for n in r.nodes if n.device == "cpu"], str(session.explain())
    list(text.generate(inputs_of(rng), [START], max_new_tokens=4))
    before, compiled = COPIES.as_dict(), text.sessions[1].state.gpu.compiled
    assert len(list(text.generate(inputs_of(rng), [START], max_new_tokens=40))) == 40
    crossed = {kind: count - before[kind] for kind, count in COPIES.as_dict().items()}
    assert (crossed["device_to_host"], crossed["device_to_host_nbytes"]) == (40, 8 * 40)
    assert crossed["host_to_device_nbytes"] == 8 * (3 * 9 + 40)  # the text, twice its mask, and the tokens
    assert crossed["device_to_device"] == 0
    assert text.sessions[1].state.gpu.compiled == compiled


def test_memory_stays_as_it_is(text: EncoderDecoder, rng: np.random.Generator) -> None:
    allowances = [session.state.allowance for session in text.sessions]

    def held() -> int:
        list(text.generate(inputs_of(rng), [START], max_new_tokens=4))
        return sum(allowance.held_nbytes for allowance in allowances)

    before = [held() for _ in range(3)][-1]
    assert max(held() for _ in range(20)) <= before + 256  # one buffer of parameters comes and goes


def test_generations_beside_each_other(text: EncoderDecoder, rng: np.random.Generator) -> None:
    plain, inputs = Plain(), [inputs_of(rng, length=length) for length in (5, 12)]
    both = [text.generate(each, [START], max_new_tokens=TOKENS) for each in inputs]
    left = text.generate(inputs[0], [START])
    next(left)
    expected = [plain.tokens(each, [START], TOKENS) for each in inputs]
    inputs[1][:] = 3  # it was read when it was given
    assert list(zip(*both, strict=True)) == list(zip(*expected, strict=True))
    assert next(left) == expected[0][1]


def test_drawn_tokens(text: EncoderDecoder, rng: np.random.Generator) -> None:
    inputs, options = inputs_of(rng), {"temperature": 1.5, "seed": 3, "max_new_tokens": TOKENS}
    expected = Plain().tokens(inputs, [START], TOKENS)
    assert list(text.generate(inputs, [START], **{**options, "top_k": 1})) == expected
    drawn = list(text.generate(inputs, [START], **options))
    assert drawn == list(text.generate(inputs, [START], **options)) != expected


@pytest.mark.parametrize("merged", [False, True], ids=["two", "merged"])
def test_a_folder_of_files(merged: bool, rng: np.random.Generator, tmp_path: Path) -> None:
    names = ["encoder_model", *(["decoder_model_merged"] if merged else ["decoder_model", "decoder_with_past_model"])]
    for name, model in zip(names, models(merged), strict=True):
        onnx.save(model, tmp_path / f"{name}.onnx")
    pair, inputs = EncoderDecoder.from_folder(tmp_path, provider_options={"strict": 1}), inputs_of(rng)
    assert list(pair.generate(inputs, [START], max_new_tokens=4)) == Plain().tokens(inputs, [START], 4)
    (tmp_path / f"{names[-1]}.onnx").unlink()
    with pytest.raises(ModelError, match=f"no {names[-1]}.onnx"):
        EncoderDecoder.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("inputs", "start", "options", "error", "said"),
    [
        ([], [START], {}, InputError, r"inputs: got float64 \[0\], expected int64 \[1, 'any'\].*'input_ids'"),
        ([0.5], [START], {}, InputError, "inputs: got float64"),
        ([[5, 6], [7, 8]], [START], {}, InputError, "one sequence at a time"),
        ([[5], [7, 8]], [START], {}, InputError, "inputs: "),
        (
            range(SIZES.length + 1),
            [START],
            {},
            InputError,
            f"got {SIZES.length + 1} tokens, expected at most {SIZES.length}.*encoder.places",
        ),
        ([5], [], {}, InputError, r"ids: got float64 \[0\]"),
        ([5], [[1, 2], [1, 2]], {}, InputError, "expected integers"),
        ([5], [1] * 64, {}, InputError, "64 tokens leaves no room"),
        ([5], [START], {"max_new_tokens": -1}, ConfigError, "max_new_tokens"),
        ([5], [START], {"temperature": -1.0}, ConfigError, "temperature"),
    ],
)
def test_bad_input(
    inputs: Any, start: Any, options: dict[str, Any], error: type[Exception], said: str, text: EncoderDecoder
) -> None:
    before = COPIES.as_dict()
    with pytest.raises(error, match=said):
        text.generate(inputs, start, **options)
    assert COPIES.as_dict() == before


def test_sound_of_another_size_and_sound_that_is_no_number(rng: np.random.Generator) -> None:
    pair, sound = EncoderDecoder(*models(True, sound=True), provider_options={"strict": 1}), inputs_of(rng, sound=True)
    with pytest.raises(InputError, match=rf"got float32 \[{BANDS}, {FRAMES - 1}\], expected float32 \[1, 8, 40\]"):
        pair.generate(sound[:, :-1], [START])
    with pytest.raises(InputError, match="NaN"):
        list(pair.generate(np.where(sound > 1, np.nan, sound), [START], max_new_tokens=2))
    assert list(pair.generate(sound, [START], max_new_tokens=3)) == Plain(sound=True).tokens(sound, [START], 3)


def renamed(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value in (*changed.graph.input, *changed.graph.output):
        value.name = value.name.replace(old, new)
    return changed


def resized(model: onnx.ModelProto, name: str, axis: int, size: int) -> onnx.ModelProto:
    changed = renamed(model, "", "")
    for value in (*changed.graph.input, *changed.graph.output):
        if value.name == name:
            value.type.tensor_type.shape.dim[axis].dim_value = size
    return changed


BAD: dict[str, tuple[Callable[[], list[onnx.ModelProto]], str]] = {
    "a decoder alone": (lambda: [encoder(), decoder(merged=True)], "decoder has no 'encoder_hidden_states'"),
    "an encoder alone": (lambda: [encoder(), encoder()], "use_cache_branch"),
    "no encoder": (lambda: [merged_decoder(), merged_decoder()], "encoder: got inputs"),
    "one decoder of two": (lambda: [encoder(), decoders()[0]], "use_cache_branch"),
    "the other order": (lambda: [encoder(), *decoders()[::-1]], "decoder_with_past"),
    "twice the first": (lambda: [encoder(), decoders()[0], decoders()[0]], "decoder_with_past"),
    "a merged one and another": (lambda: [encoder(), merged_decoder(), decoders()[1]], "decoder_with_past"),
    "other states": (
        lambda: [resized(encoder(), "last_hidden_state", 2, SIZES.width // 2), merged_decoder()],
        "encoder and decoder do not fit",
    ),
    "other heads": (
        lambda: [encoder(), decoders()[0], resized(decoders()[1], "past_key_values.1.encoder.key", 1, 2)],
        "decoder and decoder_with_past do not fit.*present.1.encoder.key",
    ),
    "other words": (
        lambda: [encoder(), decoders()[0], resized(decoders()[1], "logits", 2, WORDS + 1)],
        "decoder and decoder_with_past do not fit.*logits",
    ),
    "other layers": (
        lambda: [encoder(), renamed(decoders()[0], "present.1.", "present.2."), decoders()[1]],
        r"decoder has no 'present\.1\.",
    ),
    "an unknown input": (
        lambda: [encoder(), renamed(merged_decoder(), "encoder_attention_mask", "padding")],
        "inputs that a generation does not know: .'padding'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_models_that_do_not_fit_each_other(name: str) -> None:
    make, said = BAD[name]
    with pytest.raises(ModelError, match=said):
        EncoderDecoder(*make())


def test_lengths_and_decoders_alone() -> None:
    with pytest.raises(
        ConfigError, match=f"expected at most {SIZES.length - 2}, the positions of the model's table 'places'"
    ):
        EncoderDecoder(*models(True), max_length=SIZES.length - 1)
    assert EncoderDecoder(*models(True), provider_options={"placement": "cpu"}).max_length == SIZES.length - 2
    sound = EncoderDecoder(*models(False, sound=True), provider_options={"placement": "cpu"})
    assert sound.max_length == SIZES.length
    with pytest.raises(ModelError, match="EncoderDecoder runs"):
        ort_gpu_ep.Generator(merged_decoder())
