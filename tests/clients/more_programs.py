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


def swift_f0() -> Any:
    """The pitch of a voice, and how sure it is, by the model of the wheel."""
    from swift_f0 import SwiftF0

    from tests.clients.programs import kept

    result = kept(SwiftF0()).detect(voice(), 16000)
    return [result.pitch_hz.tolist(), result.confidence.tolist()]


def optimum() -> Any:
    """A small BERT and a small Llama, exported by it: scores of classes, tokens of a greedy and of a beam search."""
    from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSequenceClassification
    from transformers import AutoTokenizer

    from tests.clients.programs import kept

    own_models.encoder(Path("encoder"))
    own_models.decoder(Path("decoder"))
    tokenizer = AutoTokenizer.from_pretrained("encoder")
    classes = kept(ORTModelForSequenceClassification.from_pretrained("encoder", export=True))
    scores = classes(**tokenizer(list(SENTENCES), padding=True, return_tensors="pt")).logits
    writer = kept(ORTModelForCausalLM.from_pretrained("decoder", export=True))
    prompt = tokenizer(SENTENCES[0], return_token_type_ids=False, return_tensors="pt")
    texts = [writer.generate(**prompt, max_new_tokens=24, do_sample=False, num_beams=beams) for beams in (1, 3)]
    return [scores.tolist(), *(text.tolist() for text in texts)]


def sentence_transformers() -> Any:
    """Embeddings of three sentences with backend="onnx", by a small BERT that it exports."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    from tests.clients.programs import kept

    own_models.encoder(Path("encoder"))
    body = Transformer("encoder")
    SentenceTransformer(modules=[body, Pooling(body.get_word_embedding_dimension())]).save("sentences")
    client = kept(SentenceTransformer("sentences", backend="onnx", model_kwargs={"export": True}))
    return client.encode(list(SENTENCES)).tolist()


def chromadb() -> Any:
    """A collection's nearest documents and distances, by a small model in the place of all-MiniLM-L6-v2."""
    from chromadb import EphemeralClient, Settings
    from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2

    from tests.clients.programs import kept

    ONNXMiniLM_L6_V2.DOWNLOAD_PATH = Path("minilm").absolute()
    folder = ONNXMiniLM_L6_V2.DOWNLOAD_PATH / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    folder.mkdir(parents=True)
    own_models.tokenizer(folder)
    own_models.text_model(folder / "model.onnx", 384)
    (folder / "vocab.txt").write_text("\n".join(own_models.WORDS), "utf-8")
    embedding = kept(ONNXMiniLM_L6_V2())
    collection = EphemeralClient(Settings(anonymized_telemetry=False)).create_collection(
        "sentences", embedding_function=embedding
    )
    collection.add([str(i) for i in range(len(SENTENCES))], documents=list(SENTENCES))
    nearest = collection.query(query_texts=["a fast cat", "gpu models"], n_results=3)
    return [nearest["ids"], nearest["distances"]]


def mlflow() -> Any:
    """The scores of a table of rows, by a small model that it saved and loaded as a pyfunc."""
    import mlflow.onnx
    import onnx
    import pandas

    from tests.clients.programs import kept

    own_models.scores_of_rows(Path("rows.onnx"), 8)
    mlflow.onnx.save_model(onnx.load("rows.onnx"), "saved")
    client = kept(mlflow.pyfunc.load_model("saved"))
    rows = np.random.default_rng(12).standard_normal((50, 8)).astype("f")
    return client.predict(pandas.DataFrame(rows))["scores"].tolist()


def kokoro_onnx() -> Any:
    """The sound of a sentence, by a small model in the place of Kokoro-82M."""
    from kokoro_onnx import Kokoro

    from tests.clients.programs import kept

    own_models.speech_model(Path("kokoro.onnx"))
    styles = np.random.default_rng(13).standard_normal((510, 1, 256)).astype("f")
    with open("voices.bin", "wb") as file:
        np.savez(file, own=styles)
    client = kept(Kokoro("kokoro.onnx", "voices.bin"))
    sound, rate = client.create("The cat sleeps on the mat.", voice="own", speed=1.1)
    return [rate, sound[::16].tolist()]


def livekit_silero() -> Any:
    """The probability of speech for each window, by the silero_vad of the wheel."""
    from livekit.plugins.silero import onnx_model

    from tests.clients.programs import kept

    client = kept(onnx_model.OnnxModel(onnx_session=onnx_model.new_inference_session(True), sample_rate=16000))
    windows = voice(2.0)[: 512 * 60].reshape(60, 512)
    return [client(window) for window in windows]


def insightface() -> Any:
    """Embeddings of two faces, before and after the session is pickled, by a small model in the place of ArcFace."""
    import pickle

    from insightface.model_zoo import get_model

    from tests.clients.programs import kept, page

    own_models.face_model(Path("arcface.onnx"))
    client = kept(get_model("arcface.onnx", providers=["CPUExecutionProvider"]))
    faces = [np.asarray(page((text,), (112, 112))) for text in ("a", "b")]
    before = client.get_feat(faces)
    client.session = kept(pickle.loads(pickle.dumps(client.session)))
    return [before.tolist(), client.get_feat(faces).tolist()]


def fast_plate_ocr() -> Any:
    """The letters of two plates and how sure they are, by a small model that it loads."""
    from fast_plate_ocr import LicensePlateRecognizer

    from tests.clients.programs import kept, page

    letters = "0123456789ABC_"
    own_models.plate_model(Path("plate.onnx"), 6, len(letters))
    Path("plate.yaml").write_text(
        f"max_plate_slots: 6\nalphabet: {letters!r}\npad_char: '_'\nimg_height: 32\nimg_width: 64\n"
        "image_color_mode: grayscale\n",
        "utf-8",
    )
    client = kept(LicensePlateRecognizer(onnx_model_path="plate.onnx", plate_config_path="plate.yaml"))
    plates = [np.asarray(page((text,), (64, 32), 16).convert("L")) for text in ("AB12", "7C7")]
    read = client.run(plates, return_confidence=True)
    return [[each.plate, np.asarray(each.char_probs).tolist()] for each in read]


def keras() -> Any:
    """A network with convolutions and a GRU that it exported: scores of four pictures."""
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras as package
    import onnxruntime

    from tests.clients.programs import kept

    package.utils.set_random_seed(16)
    layers = package.layers
    model = package.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Reshape((14, 112)),
            layers.GRU(12, return_sequences=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(5, activation="softmax"),
        ]
    )
    pictures = np.random.default_rng(17).random((4, 16, 16, 3), np.float32)
    model(pictures)
    model.export("model.onnx", format="onnx")
    session = kept(onnxruntime.InferenceSession("model.onnx"))
    return session.run(None, {session.get_inputs()[0].name: pictures})[0].tolist()


MORE: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        rapidocr3,
        faster_whisper,
        onnx_asr,
        piper,
        fastembed,
        flashrank,
        rembg,
        scikit_learn,
        swift_f0,
        optimum,
        sentence_transformers,
        chromadb,
        mlflow,
        kokoro_onnx,
        livekit_silero,
        insightface,
        fast_plate_ocr,
        keras,
    )
}
