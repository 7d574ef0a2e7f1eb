"""Programs of packages that scripts/works_with.py tries: with models that they carry, or small ones of our own where a
package takes a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.clients import own_models

SENTENCES = ("the cat sleeps on the mat", "a gpu runs models fast", "models on a slow gpu")


def voice(seconds: float = 3.0, rate: int = 16000) -> Any:
    """A buzzing, modulated voice between silences, float32."""
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 3 * t)) / rate
    sound = sum(
        np.sin(k * phase) / k * np.exp(-(((k * 120 - f) / 300) ** 2)) for k in range(1, 30) for f in (700, 1200, 2500)
    )
    envelope = ((t > 0.8) & (t < 2.2)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    return (0.3 * sound * envelope + 0.001 * np.random.default_rng(5).standard_normal(len(t))).astype("f")


def rapidocr3() -> Any:
    """PP-OCRv6 of the wheel: texts and scores of a page of two lines."""
    from rapidocr import RapidOCR

    from tests.clients.programs import kept, page

    client = kept(RapidOCR())
    found = client(np.asarray(page(("Graphics 2026", "processing unit")))[..., ::-1].copy())
    return [[text, float(score)] for text, score in zip(found.txts, found.scores, strict=True)]


def faster_whisper() -> Any:
    """Its voice activity filter, silero_vad_v6 of the wheel: where speech is, and its probability for each window."""
    from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model

    from tests.clients.programs import kept

    sound = voice()
    model = kept(get_vad_model())
    return [
        get_speech_timestamps(sound, VadOptions(threshold=0.3)),
        np.asarray(model(sound[: 512 * 90])).reshape(-1).tolist(),
    ]


def onnx_asr() -> Any:
    """Its feature extractors of the wheel: log-mel features for Whisper, NeMo and Kaldi models."""
    from onnx_asr.preprocessors.preprocessor import OnnxPreprocessor

    from tests.clients.programs import kept

    sound, found = voice()[None], []
    for name in ("whisper80", "nemo80", "kaldi"):
        features, lengths = kept(OnnxPreprocessor(name, {}))(sound, np.array([sound.shape[1]], np.int64))
        found.append([np.asarray(lengths).tolist(), np.asarray(features)[:, ::8, ::16].tolist()])
    return found


def piper() -> Any:
    """Diacritics for Arabic and Hebrew, by the models of the wheel."""
    from piper.hebrew import NakdimonDiacritizer
    from piper.tashkeel import TashkeelDiacritizer

    from tests.clients.programs import kept

    arabic, hebrew = kept(TashkeelDiacritizer()), kept(NakdimonDiacritizer())
    return [arabic("مرحبا بكم في المكتبة"), hebrew("שלום עולם")]


def fastembed() -> Any:
    """Embeddings of three sentences, by a small model in the place of bge-small-en."""
    from fastembed import TextEmbedding

    from tests.clients.programs import kept

    folder = Path("bge")
    folder.mkdir()
    own_models.tokenizer(folder)
    own_models.text_model(folder / "model_optimized.onnx", 384)
    client = kept(TextEmbedding("BAAI/bge-small-en-v1.5", specific_model_path=str(folder)))
    return [row.tolist() for row in client.embed(SENTENCES)]


def flashrank() -> Any:
    """Passages in the order of their scores, by a small model in the place of ms-marco-TinyBERT."""
    from flashrank import Ranker, RerankRequest

    from tests.clients.programs import kept

    folder = Path("cache/ms-marco-TinyBERT-L-2-v2")
    folder.mkdir(parents=True)
    own_models.tokenizer(folder)
    own_models.text_model(folder / "flashrank-TinyBERT-L-2-v2.onnx", 128, scores=True)
    client = kept(Ranker("ms-marco-TinyBERT-L-2-v2", cache_dir="cache"))
    ranked = client.rerank(RerankRequest("gpu", [{"id": i, "text": text} for i, text in enumerate(SENTENCES)]))
    return [[each["id"], float(each["score"])] for each in ranked]


def rembg() -> Any:
    """The mask of a drawn picture, by a small model in the place of U2-Net."""
    from PIL import Image
    from rembg import new_session, remove

    from tests.clients.programs import kept, page

    own_models.mask_model(Path("mask.onnx"))
    client = kept(new_session("u2net_custom", model_path="mask.onnx"))
    mask = remove(page(("Graphics 2026",)), session=client, only_mask=True)
    return (np.asarray(mask.resize((60, 25), Image.Resampling.BOX)) // 16 * 16 / 255.0).tolist()


def scikit_learn() -> Any:
    """A logistic regression and a perceptron of scikit-learn, converted by skl2onnx: classes and probabilities."""
    import onnxruntime
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    from tests.clients.programs import kept

    x, y = load_iris(return_X_y=True)
    x, found = x.astype("f"), []
    for model in (LogisticRegression(max_iter=500), MLPClassifier((16,), max_iter=400, random_state=0)):
        converted = to_onnx(model.fit(x, y), x[:1], options={"zipmap": False})
        session = kept(onnxruntime.InferenceSession(converted.SerializeToString(), providers=["CPUExecutionProvider"]))
        labels, probabilities = session.run(None, {"X": x})
        found.append([labels.tolist(), probabilities.tolist()])
    return found


MORE: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (rapidocr3, faster_whisper, onnx_asr, piper, fastembed, flashrank, rembg, scikit_learn)
}
